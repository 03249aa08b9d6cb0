"""Whatever happens in whatever order, a rollout stays sound and comes to an end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shortlist.rollout.actions import (
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
    VerifyCandidate,
    VerifyServedFiles,
    actions,
    resume_actions,
)
from shortlist.rollout.events import Abort, Event, Failed, PhaseCompleted, Promote, StepAnalyzed
from shortlist.rollout.phases import FINAL_PHASES, REVERTING_PHASES, Phase, RolloutState
from shortlist.rollout.state_machine import advance

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
STARTS = st.sampled_from([(1, False), (None, False), (1, True)]).map(lambda one: begun(one[0], straight=one[1]))


def begun(former: int | None = 1, straight: bool = False) -> RolloutState:
    return RolloutState(
        rollout="r", candidate=2, former=former, champion=former, stable=former, steps=STEPS, straight=straight
    )


def after(state: RolloutState, *events: Event) -> RolloutState:
    for event in events:
        state, _ = advance(state, event)
    return state


def done(state: RolloutState) -> RolloutState:
    """All that the state asks for is so; the judge is content."""
    event = (
        StepAnalyzed(state.step, "proceed", "")
        if state.phase is Phase.WATCHING
        else PhaseCompleted(state.phase, state.step)
    )
    return after(state, event)


def finished(state: RolloutState) -> RolloutState:
    for _ in range(20):
        state = done(state)
    return state


def at(phase: Phase, step: int = 0, former: int | None = 1) -> RolloutState:
    state = begun(former)
    while (state.phase, state.step) != (phase, step):
        state = done(state)
    return state


def test_a_good_candidate_goes_through_every_step_to_everybody() -> None:
    state, seen = begun(), []
    while not state.final:
        seen.append((state.phase.value, state.percent))
        state = done(state)
    assert seen == [
        ("verifying", 0), ("starting", 0), ("load_testing", 0),
        ("shifting", 5), ("watching", 5), ("shifting", 25), ("watching", 25), ("shifting", 100), ("watching", 100),
        ("promoting", 100), ("draining", 100),
    ]  # fmt: skip
    assert (state.phase, state.stable) == (Phase.PROMOTED, 2)


def test_the_first_model_gets_everybody_once_it_is_load_tested() -> None:
    state, seen = begun(former=None), []
    while not state.final:
        seen.append(state.phase.value)
        state = done(state)
    assert seen == ["verifying", "starting", "load_testing", "promoting", "draining"]
    assert (state.phase, state.stable) == (Phase.PROMOTED, 2)


@pytest.mark.parametrize(
    ("phase", "asked"),
    [
        (Phase.VERIFYING, (VerifyCandidate(),)),
        (Phase.STARTING, (EnsureServing(1), VerifyCandidate(), StartServers(2))),
        (Phase.LOAD_TESTING, (LoadTestCandidate(),)),
        (Phase.SHIFTING, (VerifyServedFiles(), SetTrafficSplit(5, 0))),
        (Phase.WATCHING, (AnalyzeStep(0),)),
    ],
)
def test_every_phase_asks_for_what_it_is_about(phase: Phase, asked: tuple[object, ...]) -> None:
    assert actions(at(phase)) == asked


def test_a_promotion_stops_the_former_servers_last() -> None:
    # Its servers first: a new controller that is told to promote has not asked for them yet.
    assert actions(at(Phase.PROMOTING, 2)) == (
        StartServers(2),
        VerifyServedFiles(),
        RouteAllTraffic(2),
        SetChampionAlias(2),
    )
    assert actions(at(Phase.DRAINING, 2)) == (DrainRequests(), StopServers(1))


@pytest.mark.parametrize(
    ("state", "asked"),
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
def test_the_way_back_undoes_what_was_done(state: RolloutState, asked: tuple[object, ...]) -> None:
    gone, wanted = advance(state, Abort("enough"))
    assert (gone.phase, gone.percent, gone.reason) == (Phase.ABORTING, 0, "enough")
    assert wanted == asked


def test_the_judge_holds_proceeds_promotes_and_rolls_back() -> None:
    watching = at(Phase.WATCHING, 1)
    assert after(watching, StepAnalyzed(1, "hold", "too few requests")) == watching
    assert after(watching, StepAnalyzed(1, "proceed", "fine")).percent == 100
    back = after(watching, StepAnalyzed(1, "roll_back", "p99 900 ms > 500 ms"))
    assert (back.phase, back.reason, back.percent) == (Phase.ROLLING_BACK, "p99 900 ms > 500 ms", 0)
    assert after(at(Phase.WATCHING, 2), StepAnalyzed(2, "promote", "as good")).phase is Phase.PROMOTING


def test_a_promotion_before_the_last_step_leaves_no_step_out() -> None:
    early = after(at(Phase.WATCHING, 0), StepAnalyzed(0, "promote", "splendid"))
    assert (early.phase, early.step, early.percent) == (Phase.SHIFTING, 1, 25)


def test_a_word_about_another_step_is_too_late() -> None:
    watching = at(Phase.WATCHING, 1)
    assert after(watching, StepAnalyzed(0, "roll_back", "old news"), PhaseCompleted(Phase.SHIFTING, 0)) == watching
    assert advance(watching, PhaseCompleted(Phase.WATCHING, 1)) == (watching, ())


def test_somebody_may_promote_at_once_but_not_what_was_never_load_tested() -> None:
    now = after(at(Phase.WATCHING, 0), Promote("I know it"))
    assert (now.phase, now.percent, now.manual, now.reason) == (Phase.PROMOTING, 100, True, "I know it")
    soon = after(at(Phase.STARTING), Promote("I know it"))
    assert (soon.phase, soon.manual) == (Phase.STARTING, True)
    assert done(done(soon)).phase is Phase.PROMOTING
    assert after(soon, Failed("crashed on load")).phase is Phase.ROLLING_BACK
    assert not after(at(Phase.DRAINING, 2), Promote("again")).manual


def test_a_failure_after_the_promotion_does_not_undo_it() -> None:
    draining = at(Phase.DRAINING, 2)
    assert after(draining, Failed("the old server does not stop")) == draining


@given(STARTS, st.lists(EVENTS, max_size=60))
def test_it_is_over_or_asks_for_something(start: RolloutState, events: list[Event]) -> None:
    state = after(start, *events)
    assert state.final or finished(state).final
    assert bool(actions(state)) or state.final or state.former is None or state.reached is Phase.VERIFYING


@given(STARTS, st.lists(EVENTS, max_size=60))
def test_shares_only_grow_until_a_way_back_which_ends_at_nothing(start: RolloutState, events: list[Event]) -> None:
    state, gone = start, False
    for event in events:
        new, _ = advance(state, event)
        gone |= new.phase in REVERTING_PHASES
        assert new.percent == 0 if gone else new.percent >= state.percent
        state = new
    if gone:
        end = finished(state)
        assert (end.phase in {Phase.ROLLED_BACK, Phase.ABORTED}, end.percent, end.stable) == (True, 0, start.stable)


@given(STARTS, st.lists(EVENTS, max_size=60))
def test_it_can_be_aborted_until_it_is_over(start: RolloutState, events: list[Event]) -> None:
    state = after(start, *events)
    end = finished(after(state, Abort("enough")))
    if state.final:
        assert end == state
    elif state.phase in REVERTING_PHASES:  # already on its way back, for its own reason
        assert end.reason == state.reason
    else:
        assert (end.phase, end.reason, end.percent) == (Phase.ABORTED, "enough", 0)


@given(STARTS, st.lists(EVENTS, max_size=60), st.lists(EVENTS, max_size=20))
def test_what_is_over_never_changes(start: RolloutState, events: list[Event], later: list[Event]) -> None:
    end = finished(after(start, *events))
    assert end.phase in FINAL_PHASES
    for event in later:
        assert advance(end, event) == (end, ())
    assert actions(end) == resume_actions(end) == ()


@given(STARTS, st.lists(EVENTS, max_size=80))
def test_the_stable_version_moves_by_promotion_alone(start: RolloutState, events: list[Event]) -> None:
    state = start
    for event in events:
        state, _ = advance(state, event)
        assert state.stable == (2 if state.phase is Phase.PROMOTED else start.stable)


@given(STARTS, st.lists(EVENTS, max_size=80))
def test_everybody_gets_it_only_by_promotion_or_after_all_smaller_steps(
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
def test_a_new_controller_sees_to_the_servers_before_it_goes_on(start: RolloutState, events: list[Event]) -> None:
    state = after(start, *events)
    asked = resume_actions(state)
    if state.phase in {Phase.SHIFTING, Phase.WATCHING}:
        assert asked == (
            EnsureServing(1),
            StartServers(1),
            StartServers(2),
            VerifyServedFiles(),
            SetTrafficSplit(state.percent, state.step),
        )
    elif state.phase in REVERTING_PHASES:
        assert asked == ()  # users first: the way back waits for no server
