"""The rollout as a pure state machine, without clock, files or servers.

Every action is idempotent: it names the state that must hold. A controller that takes over from a killed one therefore
repeats the actions of the present phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shortlist.rollout.checks.observations import Decision
from shortlist.rollout.states.actions import RolloutAction, actions
from shortlist.rollout.states.events import Abort, Event, Failed, PhaseCompleted, Promote, StepAnalyzed
from shortlist.rollout.states.phases import REVERTING_PHASES, WAITING_PHASES, Phase, RolloutState

_NEXT: Final[Mapping[Phase, Phase]] = {
    Phase.VERIFYING: Phase.STARTING,
    Phase.STARTING: Phase.LOAD_TESTING,
    Phase.SHIFTING: Phase.WATCHING,  # which ends only by a decision of the analysis
    Phase.PROMOTING: Phase.CONFIRMING,
    Phase.CONFIRMING: Phase.DRAINING,
}
_ENDS: Final[Mapping[Phase, Phase]] = {Phase.ROLLING_BACK: Phase.ROLLED_BACK, Phase.ABORTING: Phase.ABORTED}


def advance(state: RolloutState, event: Event) -> tuple[RolloutState, tuple[RolloutAction, ...]]:
    """Return the state after an event, and its actions; no actions when the event changes nothing.

    Events of another phase or step, and events after the end, change nothing.
    """
    new_state = _next_state(state, event)
    return new_state, actions(new_state) if new_state != state else ()


def _next_state(state: RolloutState, event: Event) -> RolloutState:
    match event:
        case _ if state.final:
            return state
        case Abort(reason) if state.phase not in REVERTING_PHASES:
            return _revert(state, Phase.ABORTING, reason)
        case Failed(reason) if state.phase in WAITING_PHASES:
            return _revert(state, Phase.ROLLING_BACK, reason)
        case Promote(reason):
            return _promote(state, reason)
        case StepAnalyzed() | PhaseCompleted():
            return _apply_result(state, event)
        case _:
            return state


def _apply_result(state: RolloutState, event: StepAnalyzed | PhaseCompleted) -> RolloutState:
    if event.step != state.step:
        return state
    if isinstance(event, PhaseCompleted):
        return _state_after_phase(state) if event.phase is state.phase else state
    return _apply_decision(state, event.decision, event.reason) if state.phase is Phase.WATCHING else state


def _apply_decision(state: RolloutState, decision: Decision, reason: str) -> RolloutState:
    match decision:
        case "hold":
            return state
        case "roll_back":
            return _revert(state, Phase.ROLLING_BACK, reason)
        case _ if state.step + 1 < len(state.steps):  # also when the analysis would promote: no step is skipped
            return _shift(state, state.step + 1, reason)
        case _:
            return _forward(state, Phase.PROMOTING, percent=100, reason=reason)


def _promote(state: RolloutState, reason: str) -> RolloutState:
    if state.phase in {Phase.VERIFYING, Phase.STARTING, Phase.LOAD_TESTING}:
        return state.model_copy(update={"straight": True, "manual": True, "reason": reason})
    if state.phase in {Phase.SHIFTING, Phase.WATCHING}:
        return _forward(state, Phase.PROMOTING, percent=100, manual=True, reason=reason)
    return state


def _state_after_phase(state: RolloutState) -> RolloutState:
    if state.phase is Phase.LOAD_TESTING:
        if not state.straight and state.former is not None:
            return _shift(state, 0, "")
        reason = state.reason or "no version served before to compare it with"
        return _forward(state, Phase.PROMOTING, percent=100, reason=reason)
    if state.phase is Phase.DRAINING:
        return state.model_copy(update={"phase": Phase.PROMOTED, "stable": state.candidate})
    if state.phase in _ENDS:
        return state.model_copy(update={"phase": _ENDS[state.phase]})
    return _forward(state, _NEXT.get(state.phase, state.phase))


def _shift(state: RolloutState, step: int, reason: str) -> RolloutState:
    return _forward(state, Phase.SHIFTING, step=step, percent=state.steps[step], reason=reason)


def _forward(state: RolloutState, phase: Phase, **changes: object) -> RolloutState:
    return state.model_copy(update={"phase": phase, "reached": phase, **changes})


def _revert(state: RolloutState, phase: Phase, reason: str) -> RolloutState:
    return state.model_copy(update={"phase": phase, "percent": 0, "reason": reason})
