"""What a rollout asks of the servers, the registry and the canary analysis, in each of its phases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from shortlist.rollout.phases import Phase, RolloutState


@dataclass(frozen=True)
class VerifyCandidate:
    """The candidate is blessed, and its files are those that were judged."""


@dataclass(frozen=True)
class EnsureServing:
    """A version serves everybody, if nothing serves yet."""

    version: int


@dataclass(frozen=True)
class StartServers:
    """A version's servers run, and are ready."""

    version: int


@dataclass(frozen=True)
class LoadTestCandidate:
    """The candidate's running servers stand the declared load."""


@dataclass(frozen=True)
class VerifyServedFiles:
    """The files that the candidate's servers were started from are still those that were judged."""


@dataclass(frozen=True)
class SetTrafficSplit:
    """A share of the users gets the candidate, the others the former version."""

    percent: int
    step: int


@dataclass(frozen=True)
class RouteAllTraffic:
    """Everybody gets a version, on the stable track."""

    version: int


@dataclass(frozen=True)
class RemoveRoute:
    """Nobody gets anything: there is no version to go back to."""


@dataclass(frozen=True)
class AnalyzeStep:
    """One canary analysis of a step."""

    step: int


@dataclass(frozen=True)
class SetChampionAlias:
    """The registry calls a version champion; None: it has none."""

    version: int | None


@dataclass(frozen=True)
class DrainRequests:
    """Requests under way had their time to end."""


@dataclass(frozen=True)
class StopServers:
    """A version's servers are stopped."""

    version: int


RolloutAction = (
    VerifyCandidate
    | EnsureServing
    | StartServers
    | LoadTestCandidate
    | VerifyServedFiles
    | SetTrafficSplit
    | RouteAllTraffic
    | RemoveRoute
    | AnalyzeStep
    | SetChampionAlias
    | DrainRequests
    | StopServers
)


def actions(state: RolloutState) -> tuple[RolloutAction, ...]:
    """Return all that a state asks for, in order; nothing when it is final."""
    asked = _ASKED.get(state.phase)
    return asked(state) if asked else ()


def resume_actions(state: RolloutState) -> tuple[RolloutAction, ...]:
    """Return what must be so before the actions of a state are done again by a new controller.

    The servers may have been stopped together with the old one.
    """
    former = () if state.former is None else (EnsureServing(state.former), StartServers(state.former))
    serving = (*former, StartServers(state.candidate))
    match state.phase:
        case Phase.LOAD_TESTING:
            return serving
        case Phase.SHIFTING | Phase.WATCHING:
            return (*serving, VerifyServedFiles(), SetTrafficSplit(state.percent, state.step))
        case Phase.DRAINING:
            return (StartServers(state.candidate), RouteAllTraffic(state.candidate), SetChampionAlias(state.candidate))
        case _:
            return ()


def _rollback_actions(state: RolloutState) -> tuple[RolloutAction, ...]:
    if state.reached is Phase.VERIFYING:
        return ()
    if state.former is None:  # from promoting on the registry may call it champion: one that nobody gets is none
        alias = (SetChampionAlias(None),) if state.reached in {Phase.PROMOTING, Phase.DRAINING} else ()
        return (RemoveRoute(), *alias, StopServers(state.candidate))
    if state.reached in {Phase.STARTING, Phase.LOAD_TESTING}:  # no user ever got it: the route is not touched
        return (EnsureServing(state.former), StopServers(state.candidate))
    away = (RouteAllTraffic(state.former), DrainRequests(), StopServers(state.candidate))
    if state.reached in {Phase.SHIFTING, Phase.WATCHING}:
        return away
    # Its servers may be stopped already; the old champion is champion again.
    return (StartServers(state.former), away[0], SetChampionAlias(state.champion), *away[1:])


def _starting(state: RolloutState) -> tuple[RolloutAction, ...]:
    serving = () if state.former is None else (EnsureServing(state.former),)
    return (*serving, VerifyCandidate(), StartServers(state.candidate))


def _promoting(state: RolloutState) -> tuple[RolloutAction, ...]:
    # Also of a new controller, which may promote by hand what the servers stopped meanwhile, or were swapped.
    return (
        StartServers(state.candidate),
        VerifyServedFiles(),
        RouteAllTraffic(state.candidate),
        SetChampionAlias(state.candidate),
    )


_ASKED: Final[Mapping[Phase, Callable[[RolloutState], tuple[RolloutAction, ...]]]] = {
    Phase.VERIFYING: lambda _: (VerifyCandidate(),),
    Phase.STARTING: _starting,
    Phase.LOAD_TESTING: lambda _: (LoadTestCandidate(),),
    Phase.SHIFTING: lambda state: (VerifyServedFiles(), SetTrafficSplit(state.percent, state.step)),
    Phase.WATCHING: lambda state: (AnalyzeStep(state.step),),
    Phase.PROMOTING: _promoting,
    Phase.DRAINING: lambda state: () if state.former is None else (DrainRequests(), StopServers(state.former)),
    Phase.ROLLING_BACK: _rollback_actions,
    Phase.ABORTING: _rollback_actions,
}
