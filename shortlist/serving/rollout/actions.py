"""What a rollout asks of the servers, the registry and the judge, in each of its phases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from shortlist.serving.rollout.phases import Phase, State


@dataclass(frozen=True)
class Verify:
    """The candidate is blessed, and its files are those that were judged."""


@dataclass(frozen=True)
class Stand:
    """A version serves everybody, if nothing serves yet."""

    version: int


@dataclass(frozen=True)
class Serve:
    """A version's servers run, and are ready."""

    version: int


@dataclass(frozen=True)
class Prove:
    """The candidate's running servers stand the declared load."""


@dataclass(frozen=True)
class Unchanged:
    """The files that the candidate's servers were started from are still those that were judged."""


@dataclass(frozen=True)
class Send:
    """A share of the users gets the candidate, the others the former version."""

    percent: int
    step: int


@dataclass(frozen=True)
class SendAll:
    """Everybody gets a version, on the stable track."""

    version: int


@dataclass(frozen=True)
class Withdraw:
    """Nobody gets anything: there is no version to go back to."""


@dataclass(frozen=True)
class Watch:
    """The judge looks once at a step."""

    step: int


@dataclass(frozen=True)
class Crown:
    """The registry calls a version champion."""

    version: int


@dataclass(frozen=True)
class Drain:
    """Requests under way had their time to end."""


@dataclass(frozen=True)
class Retire:
    """A version's servers are stopped."""

    version: int


Action = Verify | Stand | Serve | Prove | Unchanged | Send | SendAll | Withdraw | Watch | Crown | Drain | Retire


def actions(state: State) -> tuple[Action, ...]:
    """Return all that a state asks for, in order; nothing when it is final."""
    asked = _ASKED.get(state.phase)
    return asked(state) if asked else ()


def resumed(state: State) -> tuple[Action, ...]:
    """Return what must be so before the actions of a state are done again by a new controller.

    The servers may have been stopped together with the old one.
    """
    former = () if state.former is None else (Stand(state.former), Serve(state.former))
    standing = (*former, Serve(state.candidate))
    match state.phase:
        case Phase.PROVING:
            return standing
        case Phase.SHIFTING | Phase.WATCHING:
            return (*standing, Unchanged(), Send(state.percent, state.step))
        case Phase.PROMOTING | Phase.DRAINING:
            return (Serve(state.candidate), SendAll(state.candidate), Crown(state.candidate))
        case _:
            return ()


def _way_back(state: State) -> tuple[Action, ...]:
    if state.reached is Phase.VERIFYING:
        return ()
    if state.former is None:
        return (Withdraw(), Retire(state.candidate))
    if state.reached in {Phase.STARTING, Phase.PROVING}:  # no user ever got it: the route is not touched
        return (Stand(state.former), Retire(state.candidate))
    away = (SendAll(state.former), Drain(), Retire(state.candidate))
    if state.reached in {Phase.SHIFTING, Phase.WATCHING}:
        return away
    # Its servers may be stopped already; the old champion is champion again.
    crown = () if state.champion is None else (Crown(state.champion),)
    return (Serve(state.former), away[0], *crown, *away[1:])


def _starting(state: State) -> tuple[Action, ...]:
    standing = () if state.former is None else (Stand(state.former),)
    return (*standing, Verify(), Serve(state.candidate))


_ASKED: Final[Mapping[Phase, Callable[[State], tuple[Action, ...]]]] = {
    Phase.VERIFYING: lambda _: (Verify(),),
    Phase.STARTING: _starting,
    Phase.PROVING: lambda _: (Prove(),),
    Phase.SHIFTING: lambda state: (Unchanged(), Send(state.percent, state.step)),
    Phase.WATCHING: lambda state: (Watch(state.step),),
    Phase.PROMOTING: lambda state: (Unchanged(), SendAll(state.candidate), Crown(state.candidate)),
    Phase.DRAINING: lambda state: () if state.former is None else (Drain(), Retire(state.former)),
    Phase.ROLLING_BACK: _way_back,
    Phase.ABORTING: _way_back,
}
