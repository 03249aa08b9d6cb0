"""Properties of the state machine for all sequences of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shortlist.rollout.states.actions import (
    AnalyzeStep,
    DrainRequests,
    EnsureServing,
    LoadTestCandidate,
    RemoveRoute,
    RouteAllTraffic,
    SetChampionAlias,
    SetTrafficSplit,
    StartServers,
    StopServers,
    VerifyAnswers,
    VerifyCandidate,
    VerifyServedFiles,
    actions,
    resume_actions,
)
from shortlist.rollout.states.events import Abort, Event, Failed, PhaseCompleted, Promote, StepAnalyzed
from shortlist.rollout.states.phases import FINAL_PHASES, REVERTING_PHASES, Phase, RolloutState
from shortlist.rollout.states.state_machine import advance

STEPS = (5, 25, 100)

EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(PhaseCompleted, st.sampled_from(Phase), st.integers(0, 3)),
    st.builds(
        StepAnalyzed,
        st.integers(0, 3),
        st.sampled_from(["hold", "proceed", "promote", "roll_back"]),
        st.just("judged so"),
    ),
    st.builds(Failed, st.just("it crashed")),
    st.builds(Abort, st.just("somebody said so")),
    st.builds(Promote, st.just("somebody was sure")),
)
STARTS = st.sampled_from([(1, False), (None, False), (1, True)]).map(
    lambda case: initial_state(case[0], straight=case[1])
)


def initial_state(former: int | None = 1, straight: bool = False) -> RolloutState:
    return RolloutState(
        rollout="r", candidate=2, former=former, champion=former, stable=former, steps=STEPS, straight=straight
    )


def advance_all(state: RolloutState, *events: Event) -> RolloutState:
    for event in events:
        state, _ = advance(state, event)
    return state


def complete_phase(state: RolloutState) -> RolloutState:
    """Return the state after its actions succeeded and the analysis proceeds."""
    event = (
        StepAnalyzed(state.step, "proceed", "")
        if state.phase is Phase.WATCHING
        else PhaseCompleted(state.phase, state.step)
    )
    return advance_all(state, event)


def finished(state: RolloutState) -> RolloutState:
    for _ in range(20):
        state = complete_phase(state)
    return state


def at(phase: Phase, step: int = 0, former: int | None = 1) -> RolloutState:
    state = initial_state(former)
    while (state.phase, state.step) != (phase, step):
        state = complete_phase(state)
    return state


def test_a_good_candidate_passes_every_step_and_is_promoted() -> None:
    state, phases = initial_state(), []
    while not state.final:
        phases.append((state.phase.value, state.percent))
        state = complete_phase(state)
    assert phases == [
        ("verifying", 0), ("starting", 0), ("load_testing", 0),
        ("shifting", 5), ("watching", 5), ("shifting", 25), ("watching", 25), ("shifting", 100), ("watching", 100),
        ("promoting", 100), ("confirming", 100), ("draining", 100),
    ]  # fmt: skip
    assert (state.phase, state.stable) == (Phase.PROMOTED, 2)


def test_the_first_model_is_promoted_after_the_load_test() -> None:
    state, phases = initial_state(former=None), []
    while not state.final:
        phases.append(state.phase.value)
        state = complete_phase(state)
    assert phases == ["verifying", "starting", "load_testing", "promoting", "confirming", "draining"]
    assert (state.phase, state.stable) == (Phase.PROMOTED, 2)


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (Phase.VERIFYING, (VerifyCandidate(),)),
        (Phase.STARTING, (EnsureServing(1), VerifyCandidate(), StartServers(2))),
        (Phase.LOAD_TESTING, (VerifyAnswers(), LoadTestCandidate())),
        (Phase.SHIFTING, (VerifyServedFiles(), VerifyAnswers(), SetTrafficSplit(5, 0))),
        (Phase.WATCHING, (AnalyzeStep(0),)),
    ],
)
def test_actions_of_every_phase(phase: Phase, expected: tuple[object, ...]) -> None:
    assert actions(at(phase)) == expected


def test_a_promotion_stops_the_former_servers_last() -> None:
    # Its servers first: a new controller that is told to promote has not asked for them yet.
    assert actions(at(Phase.PROMOTING, 2)) == (
        StartServers(2),
        VerifyServedFiles(),
        VerifyAnswers(),
        RouteAllTraffic(2),
        SetChampionAlias(2),
    )
    assert actions(at(Phase.CONFIRMING, 2)) == (VerifyAnswers(),)
    assert actions(at(Phase.DRAINING, 2)) == (DrainRequests(), VerifyAnswers(), StopServers(1))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (at(Phase.VERIFYING), ()),  # nothing was started
        (at(Phase.LOAD_TESTING), (EnsureServing(1), StopServers(2))),  # no user got it: nobody's route is touched
        (at(Phase.WATCHING, 1), (RouteAllTraffic(1), DrainRequests(), StopServers(2))),  # users first
        (
            at(Phase.DRAINING, 2),
            (StartServers(1), RouteAllTraffic(1), SetChampionAlias(1), DrainRequests(), StopServers(2)),
        ),
        (at(Phase.LOAD_TESTING, former=None), (RemoveRoute(), StopServers(2))),
        (
            at(Phase.PROMOTING, former=None),
            (RemoveRoute(), SetChampionAlias(None), StopServers(2)),
        ),  # one that nobody gets is no champion
    ],
)
def test_a_rollback_undoes_every_completed_action(state: RolloutState, expected: tuple[object, ...]) -> None:
    aborting, rollback_actions = advance(state, Abort("enough"))
    assert (aborting.phase, aborting.percent, aborting.reason) == (Phase.ABORTING, 0, "enough")
    assert rollback_actions == expected


def test_the_analysis_holds_proceeds_promotes_and_rolls_back() -> None:
    watching = at(Phase.WATCHING, 1)
    assert advance_all(watching, StepAnalyzed(1, "hold", "too few requests")) == watching
    assert advance_all(watching, StepAnalyzed(1, "proceed", "fine")).percent == 100
    back = advance_all(watching, StepAnalyzed(1, "roll_back", "p99 900 ms > 500 ms"))
    assert (back.phase, back.reason, back.percent) == (Phase.ROLLING_BACK, "p99 900 ms > 500 ms", 0)
    assert advance_all(at(Phase.WATCHING, 2), StepAnalyzed(2, "promote", "as good")).phase is Phase.PROMOTING


def test_a_promotion_before_the_last_step_skips_no_step() -> None:
    early = advance_all(at(Phase.WATCHING, 0), StepAnalyzed(0, "promote", "splendid"))
    assert (early.phase, early.step, early.percent) == (Phase.SHIFTING, 1, 25)


def test_a_decision_about_another_step_is_ignored() -> None:
    watching = at(Phase.WATCHING, 1)
    assert (
        advance_all(watching, StepAnalyzed(0, "roll_back", "old news"), PhaseCompleted(Phase.SHIFTING, 0)) == watching
    )
    assert advance(watching, PhaseCompleted(Phase.WATCHING, 1)) == (watching, ())


def test_a_command_promotes_at_once_but_only_after_the_load_test() -> None:
    now = advance_all(at(Phase.WATCHING, 0), Promote("I know it"))
    assert (now.phase, now.percent, now.manual, now.reason) == (Phase.PROMOTING, 100, True, "I know it")
    soon = advance_all(at(Phase.STARTING), Promote("I know it"))
    assert (soon.phase, soon.manual) == (Phase.STARTING, True)
    assert complete_phase(complete_phase(soon)).phase is Phase.PROMOTING
    assert advance_all(soon, Failed("crashed on load")).phase is Phase.ROLLING_BACK
    assert not advance_all(at(Phase.DRAINING, 2), Promote("again")).manual


def test_a_promoted_version_that_does_not_answer_is_rolled_back_while_the_former_servers_run() -> None:
    state, rollback_actions = advance(at(Phase.CONFIRMING, 2), Failed("no ready endpoint"))
    assert (state.phase, state.reason) == (Phase.ROLLING_BACK, "no ready endpoint")
    assert rollback_actions[:3] == (StartServers(1), RouteAllTraffic(1), SetChampionAlias(1))


def test_a_failure_while_draining_does_not_undo_the_promotion() -> None:
    draining = at(Phase.DRAINING, 2)
    assert advance_all(draining, Failed("the old server does not stop")) == draining


@given(STARTS, st.lists(EVENTS, max_size=60))
def test_every_unfinished_state_has_actions_or_waits(start: RolloutState, events: list[Event]) -> None:
    state = advance_all(start, *events)
    assert state.final or finished(state).final
    assert bool(actions(state)) or state.final or state.former is None or state.reached is Phase.VERIFYING


@given(STARTS, st.lists(EVENTS, max_size=60))
def test_shares_only_grow_until_a_rollback_which_ends_at_0_percent(start: RolloutState, events: list[Event]) -> None:
    state, is_reverting = start, False
    for event in events:
        new, _ = advance(state, event)
        is_reverting |= new.phase in REVERTING_PHASES
        assert new.percent == 0 if is_reverting else new.percent >= state.percent
        state = new
    if is_reverting:
        end = finished(state)
        assert (end.phase in {Phase.ROLLED_BACK, Phase.ABORTED}, end.percent, end.stable) == (True, 0, start.stable)


@given(STARTS, st.lists(EVENTS, max_size=60))
def test_every_unfinished_rollout_can_be_aborted(start: RolloutState, events: list[Event]) -> None:
    state = advance_all(start, *events)
    end = finished(advance_all(state, Abort("enough")))
    if state.final:
        assert end == state
    elif state.phase in REVERTING_PHASES:  # already on its way back, for its own reason
        assert end.reason == state.reason
    else:
        assert (end.phase, end.reason, end.percent) == (Phase.ABORTED, "enough", 0)


@given(STARTS, st.lists(EVENTS, max_size=60), st.lists(EVENTS, max_size=20))
def test_a_finished_rollout_never_changes(start: RolloutState, events: list[Event], later_events: list[Event]) -> None:
    end = finished(advance_all(start, *events))
    assert end.phase in FINAL_PHASES
    for event in later_events:
        assert advance(end, event) == (end, ())
    assert actions(end) == resume_actions(end) == ()


@given(STARTS, st.lists(EVENTS, max_size=80))
def test_the_stable_version_moves_by_promotion_alone(start: RolloutState, events: list[Event]) -> None:
    state = start
    for event in events:
        state, _ = advance(state, event)
        assert state.stable == (2 if state.phase is Phase.PROMOTED else start.stable)


@given(STARTS, st.lists(EVENTS, max_size=80))
def test_all_users_get_the_candidate_only_by_promotion_or_after_all_smaller_steps(
    start: RolloutState, events: list[Event]
) -> None:
    state, shares = start, [0]
    for event in events:
        state, _ = advance(state, event)
        if state.percent != shares[-1]:
            shares.append(state.percent)
    sent = [share for share in shares if 0 < share < 100]
    assert sent == list(STEPS[: len(sent)])
    assert 100 not in shares or len(sent) == 2 or state.manual or start.straight or start.former is None


@given(STARTS, st.lists(EVENTS, max_size=60))
def test_a_new_controller_starts_the_servers_before_it_resumes(start: RolloutState, events: list[Event]) -> None:
    state = advance_all(start, *events)
    first_actions = resume_actions(state)
    if state.phase in {Phase.SHIFTING, Phase.WATCHING}:
        assert first_actions == (
            EnsureServing(1),
            StartServers(1),
            StartServers(2),
            VerifyServedFiles(),
            SetTrafficSplit(state.percent, state.step),
        )
    elif state.phase in REVERTING_PHASES:
        assert first_actions == ()  # users first: the way back waits for no server
