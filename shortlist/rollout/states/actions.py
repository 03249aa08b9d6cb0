"""Actions of each phase of a rollout, on servers, registry and canary analysis.

An action names the state that must hold afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from shortlist.rollout.states.phases import Phase, RolloutState


@dataclass(frozen=True)
class VerifyCandidate:
    """The candidate is blessed, and its files are those that passed the gates."""


@dataclass(frozen=True)
class EnsureServing:
    """A version serves everybody, if nothing serves yet."""

    version: int


@dataclass(frozen=True)
class StartServers:
    """The servers of a version run and are ready."""

    version: int


@dataclass(frozen=True)
class VerifyAnswers:
    """The candidate's servers are ready now, and score a row."""


@dataclass(frozen=True)
class LoadTestCandidate:
    """The candidate's running servers pass the declared load test."""


@dataclass(frozen=True)
class VerifyServedFiles:
    """The files that the candidate's servers were started from are unchanged."""


@dataclass(frozen=True)
class SetTrafficSplit:
    """A share of the users gets the candidate, the others the former version."""

    percent: int
    step: int


@dataclass(frozen=True)
class RouteAllTraffic:
    """All users get a version, on the stable track."""

    version: int


@dataclass(frozen=True)
class RemoveRoute:
    """No version is routed: there is no former version to return to."""


@dataclass(frozen=True)
class AnalyzeStep:
    """One canary analysis of a step."""

    step: int


@dataclass(frozen=True)
class SetChampionAlias:
    """The registry's champion alias points to a version; None: to nothing."""

    version: int | None


@dataclass(frozen=True)
class DrainRequests:
    """Requests in flight had time to finish (`drain_seconds`)."""


@dataclass(frozen=True)
class StopServers:
    """A version's servers are stopped."""

    version: int


RolloutAction = (
    VerifyCandidate
    | EnsureServing
    | StartServers
    | VerifyAnswers
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
    """Return the actions of a state, in order; none when it is final."""
    make_actions = _ACTIONS_BY_PHASE.get(state.phase)
    return make_actions(state) if make_actions else ()


def resume_actions(state: RolloutState) -> tuple[RolloutAction, ...]:
    """Return the actions that a new controller executes before it repeats those of the state.

    The servers may have been stopped together with the previous controller.
    """
    former = () if state.former is None else (EnsureServing(state.former), StartServers(state.former))
    serving = (*former, StartServers(state.candidate))
    match state.phase:
        case Phase.LOAD_TESTING:
            return serving
        case Phase.SHIFTING | Phase.WATCHING:
            return (*serving, VerifyServedFiles(), SetTrafficSplit(state.percent, state.step))
        case Phase.CONFIRMING:
            return (*serving, VerifyServedFiles(), *_route_candidate(state))
        case Phase.DRAINING:
            return (StartServers(state.candidate), *_route_candidate(state))
        case _:
            return ()


def _rollback_actions(state: RolloutState) -> tuple[RolloutAction, ...]:
    if state.reached is Phase.VERIFYING:
        return ()
    if state.former is None:  # from promoting on the champion alias may point to it, although it is withdrawn
        is_alias_moved = state.reached in {Phase.PROMOTING, Phase.CONFIRMING, Phase.DRAINING}
        alias = (SetChampionAlias(None),) if is_alias_moved else ()
        return (RemoveRoute(), *alias, StopServers(state.candidate))
    if state.reached in {Phase.STARTING, Phase.LOAD_TESTING}:  # no user got the candidate: the route is unchanged
        return (EnsureServing(state.former), StopServers(state.candidate))
    revert_actions = (RouteAllTraffic(state.former), DrainRequests(), StopServers(state.candidate))
    if state.reached in {Phase.SHIFTING, Phase.WATCHING}:
        return revert_actions
    # The former servers may be stopped already; the alias returns to the former champion.
    return (StartServers(state.former), revert_actions[0], SetChampionAlias(state.champion), *revert_actions[1:])


def _starting_actions(state: RolloutState) -> tuple[RolloutAction, ...]:
    serving = () if state.former is None else (EnsureServing(state.former),)
    return (*serving, VerifyCandidate(), StartServers(state.candidate))


def _promoting_actions(state: RolloutState) -> tuple[RolloutAction, ...]:
    # A new controller may promote by hand after the servers stopped or their files were replaced: check both again.
    return (
        StartServers(state.candidate),
        VerifyServedFiles(),
        VerifyAnswers(),
        *_route_candidate(state),
    )


def _draining_actions(state: RolloutState) -> tuple[RolloutAction, ...]:
    # The check is the last action before the deletion: afterwards no servers are left to return to.
    return () if state.former is None else (DrainRequests(), VerifyAnswers(), StopServers(state.former))


def _route_candidate(state: RolloutState) -> tuple[RolloutAction, ...]:
    return (RouteAllTraffic(state.candidate), SetChampionAlias(state.candidate))


_ACTIONS_BY_PHASE: Final[Mapping[Phase, Callable[[RolloutState], tuple[RolloutAction, ...]]]] = {
    Phase.VERIFYING: lambda _: (VerifyCandidate(),),
    Phase.STARTING: _starting_actions,
    Phase.LOAD_TESTING: lambda _: (VerifyAnswers(), LoadTestCandidate()),
    Phase.SHIFTING: lambda state: (
        VerifyServedFiles(),
        VerifyAnswers(),
        SetTrafficSplit(state.percent, state.step),
    ),
    Phase.WATCHING: lambda state: (AnalyzeStep(state.step),),
    Phase.PROMOTING: _promoting_actions,
    Phase.CONFIRMING: lambda state: () if state.former is None else (VerifyAnswers(),),
    Phase.DRAINING: _draining_actions,
    Phase.ROLLING_BACK: _rollback_actions,
    Phase.ABORTING: _rollback_actions,
}
