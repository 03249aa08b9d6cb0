"""Simulated rollouts with faults keep every rule; each of the planted bugs breaks one and is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from shortlist.rollout import action_executor as performer
from shortlist.rollout import actions as asked
from shortlist.rollout import commands, controller
from shortlist.rollout import state_machine as machine
from shortlist.rollout.actions import (
    AnalyzeStep,
    DrainRequests,
    EnsureServing,
    RemoveRoute,
    RolloutAction,
    RouteAllTraffic,
    SetChampionAlias,
    SetTrafficSplit,
    StartServers,
    StopServers,
    VerifyServedFiles,
)
from shortlist.rollout.deployment import Route
from shortlist.rollout.events import Abort, Event, Failed, PhaseCompleted, Promote, StepAnalyzed
from shortlist.rollout.phases import REVERTING_PHASES, Phase, RolloutState
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.rollouts import RolloutError, Rollouts
from shortlist.rollout.simulation.history import Fault, History
from shortlist.rollout.simulation.rules import BrokenRuleError
from shortlist.rollout.simulation.world import play

Patch = pytest.MonkeyPatch
SEEDS = 300
"""Seeded histories of the suite; `make bench NAME=simulate` plays thousands a minute."""
MOST = 2_000
"""Histories within which a planted bug has to be found."""


def first_broken(histories: Iterator[History]) -> tuple[History, BaseException] | None:
    """Return the first history that breaks a rule, and how."""
    for history in histories:
        if (broken := play(history)) is not None:
            return history, broken
    return None


@pytest.mark.long
def test_seeded_histories_keep_every_rule() -> None:
    found = first_broken(History.seeded(seed) for seed in range(SEEDS))
    assert found is None, found[0].as_test("found", str(found[1]))


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.KILL_AFTER, Fault.STACK_DOWN, Fault.FAIL_AFTER])
@pytest.mark.parametrize("history", [History(), History(bad_from=1), History(first=True)], ids=["good", "bad", "first"])
def test_every_call_is_a_moment_at_which_it_may_happen(history: History, fault: Fault) -> None:
    found = first_broken(replace(history, faults=((at, fault),)) for at in range(1, 90))
    assert found is None, found[0].as_test("found", str(found[1]))


def test_a_history_always_plays_in_the_same_way() -> None:
    worlds = [History.seeded(seed) for seed in range(20)]
    assert worlds == [History.seeded(seed) for seed in range(20)]
    assert [str(play(one)) for one in worlds] == [str(play(one)) for one in worlds]


def test_files_that_are_swapped_before_everybody_gets_them_are_found_by_the_next_controller() -> None:
    # Found by simulation: a resumed promotion sent everybody to the candidate before it looked at its files.
    faults = ((31, Fault.TAMPER), (45, Fault.KILL))
    assert play(History(steps=(10, 100), holds=1, faults=faults)) is None


def test_a_promotion_ordered_while_the_servers_are_down_waits_for_them() -> None:
    # Found by simulation: the order was obeyed before the new controller had asked for the candidate's servers.
    faults = ((80, Fault.KILL_THEN_PROMOTE), (83, Fault.STACK_DOWN))
    assert play(History(commands=("canary", "canary"), faults=faults)) is None


def test_users_are_sent_back_when_a_way_back_cannot_be_written_down() -> None:
    # Found by simulation: they stayed on a canary that the judge had sent back.
    for at in range(30, 60):
        assert play(History(bad_from=1, faults=((at, Fault.FAIL),))) is None, at


def test_a_first_model_withdrawn_while_it_is_promoted_loses_its_alias() -> None:
    for at in range(20, 60):
        for champion in (True, False):
            history = History(first=True, champion=champion, faults=((at, Fault.KILL_THEN_ROLL_BACK),))
            assert play(history) is None, at


# --- planted bugs


def of_phase(
    patch: Patch, phase: Phase, change: Callable[[tuple[RolloutAction, ...]], tuple[RolloutAction, ...]]
) -> None:
    """Change what a phase asks for."""
    whole = asked._ACTIONS_BY_PHASE[phase]
    patch.setattr(
        asked,
        "_ACTIONS_BY_PHASE",
        MappingProxyType({**asked._ACTIONS_BY_PHASE, phase: lambda state: change(whole(state))}),
    )


def without(*kinds: type) -> Callable[[tuple[RolloutAction, ...]], tuple[RolloutAction, ...]]:
    """Return a change that leaves actions of some kinds out."""
    return lambda actions: tuple(action for action in actions if not isinstance(action, kinds))


def way_back(patch: Patch, change: Callable[[tuple[RolloutAction, ...]], tuple[RolloutAction, ...]]) -> None:
    """Change what a way back asks for."""
    of_phase(patch, Phase.ROLLING_BACK, change)
    of_phase(patch, Phase.ABORTING, change)


def resuming(
    patch: Patch, change: Callable[[RolloutState, tuple[RolloutAction, ...]], tuple[RolloutAction, ...]]
) -> None:
    """Change what a new controller does first."""
    whole = asked.resume_actions
    patch.setattr(controller, "resume_actions", lambda state: change(state, whole(state)))


def events(patch: Patch, change: Callable[[RolloutState, Event, RolloutState], RolloutState]) -> None:
    """Change where an event leads; the change gets the state before, the event and the right state after."""
    whole = machine._next_state
    patch.setattr(machine, "_next_state", lambda state, event: change(state, event, whole(state, event)))


def routes(patch: Patch, change: Callable[[Route], Route]) -> None:
    """Change the route of a share."""
    whole = performer.ActionExecutor._set_traffic_split

    def send(self: Any, action: SetTrafficSplit) -> None:
        fleet = self._context.fleet
        before = fleet.route
        fleet.route = lambda route: before(change(route))
        try:
            whole(self, action)
        finally:
            del fleet.route

    patch.setattr(performer.ActionExecutor, "_set_traffic_split", send)
    rebound(patch)


def rebound(patch: Patch) -> None:
    """Have performers look their ways up by name, so that patched ones count."""
    whole = performer.ActionExecutor.__init__

    def init(self: Any, *given: Any) -> None:
        whole(self, *given)
        names = {
            SetTrafficSplit: "_set_traffic_split",
            EnsureServing: "_ensure_serving",
            DrainRequests: "_drain_requests",
            RouteAllTraffic: "_route_all_traffic",
            VerifyServedFiles: "_verify_served_files",
        }
        self._executors = {**self._executors, **{kind: getattr(self, name) for kind, name in names.items()}}

    patch.setattr(performer.ActionExecutor, "__init__", init)


def method(patch: Patch, owner: type, name: str, changed: Callable[..., Any]) -> None:
    """Replace a method; the changed one gets the whole one first."""
    whole = getattr(owner, name)
    patch.setattr(owner, name, lambda *given, **named: changed(whole, *given, **named))


def a_way_back_leaves_users_there(patch: Patch) -> None:
    way_back(patch, without(RouteAllTraffic))


def a_way_back_stops_servers_first(patch: Patch) -> None:
    way_back(patch, lambda all_: tuple(sorted(all_, key=lambda one: not isinstance(one, StopServers))))


def a_way_back_leaves_servers_running(patch: Patch) -> None:
    way_back(patch, without(StopServers))


def a_way_back_does_not_drain(patch: Patch) -> None:
    way_back(patch, without(DrainRequests))


def a_way_back_keeps_the_alias(patch: Patch) -> None:
    way_back(patch, without(SetChampionAlias))


def a_way_back_after_a_promotion_forgets_to_start_the_former(patch: Patch) -> None:
    way_back(patch, without(StartServers))


def a_first_model_is_not_withdrawn(patch: Patch) -> None:
    way_back(patch, without(RemoveRoute))


def a_withdrawn_first_model_stays_champion(patch: Patch) -> None:
    way_back(patch, lambda all_: tuple(one for one in all_ if one != SetChampionAlias(None)))


def a_way_back_drains_before_it_sends_users(patch: Patch) -> None:
    way_back(patch, lambda all_: tuple(sorted(all_, key=lambda one: not isinstance(one, DrainRequests))))


def a_promotion_forgets_the_alias(patch: Patch) -> None:
    of_phase(patch, Phase.PROMOTING, without(SetChampionAlias))
    resuming(patch, lambda _, all_: without(SetChampionAlias)(all_))


def a_promotion_looks_at_no_files(patch: Patch) -> None:
    of_phase(patch, Phase.PROMOTING, without(VerifyServedFiles))


def a_step_looks_at_no_files(patch: Patch) -> None:
    of_phase(patch, Phase.SHIFTING, without(VerifyServedFiles))
    resuming(patch, lambda _, all_: without(VerifyServedFiles)(all_))


def a_promotion_leaves_the_former_running(patch: Patch) -> None:
    of_phase(patch, Phase.DRAINING, without(StopServers))


def a_promotion_does_not_drain(patch: Patch) -> None:
    of_phase(patch, Phase.DRAINING, without(DrainRequests))


def nobody_puts_the_former_up(patch: Patch) -> None:
    of_phase(patch, Phase.STARTING, without(EnsureServing))


def no_load_test_is_run(patch: Patch) -> None:
    of_phase(patch, Phase.LOAD_TESTING, lambda _: (AnalyzeStep(0),))


def a_new_controller_waits_for_no_servers(patch: Patch) -> None:
    resuming(patch, lambda _, all_: without(StartServers)(all_))


def a_resumed_promotion_looks_at_no_files(patch: Patch) -> None:
    def change(state: RolloutState, all_: tuple[RolloutAction, ...]) -> tuple[RolloutAction, ...]:
        return (
            (StartServers(state.candidate), RouteAllTraffic(state.candidate))
            if state.phase is Phase.PROMOTING
            else all_
        )

    resuming(patch, change)


def a_promotion_asks_for_no_servers(patch: Patch) -> None:
    of_phase(patch, Phase.PROMOTING, without(StartServers))


def a_new_controller_sends_everybody_back_first(patch: Patch) -> None:
    def change(state: RolloutState, all_: tuple[RolloutAction, ...]) -> tuple[RolloutAction, ...]:
        return (RouteAllTraffic(state.former), *all_) if state.phase is Phase.WATCHING and state.former else all_

    resuming(patch, change)


def holding_goes_on(patch: Patch) -> None:
    def change(state: RolloutState, event: Event, after: RolloutState) -> RolloutState:
        held = isinstance(event, StepAnalyzed) and event.decision == "hold" and state.phase is Phase.WATCHING
        return machine._apply_decision(state, "proceed", "") if held else after

    events(patch, change)


def the_judge_is_not_heard(patch: Patch) -> None:
    def change(state: RolloutState, event: Event, after: RolloutState) -> RolloutState:
        bad = isinstance(event, StepAnalyzed) and event.decision == "roll_back" and state.phase is Phase.WATCHING
        return machine._apply_decision(state, "proceed", "") if bad else after

    events(patch, change)


def a_step_is_left_out(patch: Patch) -> None:
    whole = machine._shift
    patch.setattr(
        machine, "_shift",
        lambda state, step, reason: whole(state, len(state.steps) - 1 if step == 1 else step, reason),
    )  # fmt: skip


def the_first_step_is_the_last(patch: Patch) -> None:
    def change(state: RolloutState, event: Event, after: RolloutState) -> RolloutState:
        passed = after.phase is Phase.SHIFTING and after.step == 1 and state.phase is Phase.WATCHING
        return machine._forward(state, Phase.PROMOTING, percent=100) if passed else after

    events(patch, change)


def a_share_grows_before_its_step(patch: Patch) -> None:
    routes(patch, lambda route: route.model_copy(update={"percent": min(2 * route.percent, 100)}))


def tracks_are_exchanged(patch: Patch) -> None:
    routes(patch, lambda route: route.model_copy(update={"stable": route.canary, "canary": route.stable}))


def every_step_has_a_salt_of_its_own(patch: Patch) -> None:
    routes(patch, lambda route: route.model_copy(update={"rollout": f"{route.rollout}-{route.step}"}))


def a_way_back_can_be_called_off(patch: Patch) -> None:
    def change(state: RolloutState, event: Event, after: RolloutState) -> RolloutState:
        heard = isinstance(event, Promote) and state.phase in REVERTING_PHASES and state.former is not None
        return machine._forward(state, Phase.PROMOTING, percent=100) if heard else after

    events(patch, change)


def a_way_back_is_aborted(patch: Patch) -> None:
    def change(state: RolloutState, event: Event, after: RolloutState) -> RolloutState:
        heard = isinstance(event, Abort) and state.phase is Phase.ROLLING_BACK
        return machine._revert(state, Phase.ABORTING, event.reason) if heard else after

    events(patch, change)


def a_failure_is_not_heard(patch: Patch) -> None:
    def change(state: RolloutState, event: Event, after: RolloutState) -> RolloutState:
        failed = isinstance(event, Failed) and state.phase in {Phase.SHIFTING, Phase.PROMOTING, Phase.LOAD_TESTING}
        return machine._state_after_phase(state) if failed else after

    events(patch, change)


def a_way_back_keeps_its_share(patch: Patch) -> None:
    whole = machine._revert
    patch.setattr(
        machine, "_revert",
        lambda state, phase, reason: whole(state, phase, reason).model_copy(update={"percent": state.percent}),
    )  # fmt: skip


def promoting_by_hand_needs_no_proof(patch: Patch) -> None:
    def change(state: RolloutState, event: Event, after: RolloutState) -> RolloutState:
        early = isinstance(event, PhaseCompleted) and state.phase is Phase.STARTING and after.straight
        return machine._forward(state, Phase.PROMOTING, percent=100) if early else after

    events(patch, change)


def a_state_is_written_after_it_is_acted_on(patch: Patch) -> None:
    def save(whole: Callable[..., None], self: Any, record: RolloutRecord) -> None:
        if record.state.phase is not Phase.SHIFTING:
            whole(self, record)

    method(patch, Rollouts, "save", save)


def the_state_says_over_before_the_evidence_is_there(patch: Patch) -> None:
    def apply_event(self: Any, event: Event | None) -> None:
        record = self._record_now()
        record = record if event is None else record.with_state(machine.advance(record.state, event)[0])
        self._save(record)
        if record.state.final:
            self._conclude(record)

    patch.setattr(controller.Controller, "_apply_event", apply_event)


def a_full_disk_leaves_users_on_the_canary(patch: Patch) -> None:
    patch.setattr(
        controller.Controller, "_unfinished_error", lambda _, error: RolloutError(f"cannot be written ({error})")
    )


def time_without_a_controller_counts(patch: Patch) -> None:
    def init(whole: Callable[..., None], self: Any, rollouts: Any, tools: Any, record: RolloutRecord) -> None:
        whole(self, rollouts, tools, record)
        self._seconds_before += 60.0 if record.history else 0.0

    method(patch, controller.Controller, "__init__", init)


def a_new_controller_forgets_the_time_at_the_step(patch: Patch) -> None:
    def with_observation(self: Any) -> RolloutRecord:
        record: RolloutRecord = self._record.model_copy(update={"elapsed_seconds": 0.0})
        return record.with_elapsed(self._context.clock() - self._started_at)

    patch.setattr(controller.Controller, "_record_now", with_observation)


def orders_are_not_read(patch: Patch) -> None:
    patch.setattr(Rollouts, "pending_command", lambda *_: None)


def a_blind_judge_is_content(patch: Patch) -> None:
    def looked(whole: Callable[..., Event | None], self: Any) -> Event | None:
        event = whole(self)
        return StepAnalyzed(self._record.state.step, "proceed", "") if isinstance(event, Failed) else event

    method(patch, controller.Controller, "_analyze", looked)


def a_hiccup_rolls_back(patch: Patch) -> None:
    patch.setattr(performer, "_ATTEMPTS", 1)


def putting_up_does_not_ask_who_serves(patch: Patch) -> None:
    def stand(self: Any, action: EnsureServing) -> None:
        self._start_servers(StartServers(action.version))
        self._route_all_traffic(RouteAllTraffic(action.version))

    patch.setattr(performer.ActionExecutor, "_ensure_serving", stand)
    rebound(patch)


def two_controllers_may_work(patch: Patch) -> None:
    patch.setattr(Rollouts, "lock", lambda *_: nullcontext())


def an_unfinished_rollout_is_begun_again(patch: Patch) -> None:
    patch.setattr(Rollouts, "unfinished", lambda _: None)


def a_return_leads_to_what_was_rolled_back(patch: Patch) -> None:
    def previous_version(self: Any) -> int:
        for record in self._rollouts.newest_first():
            if record.state.former is not None:
                return int(record.state.former)
        raise RolloutError("nothing to return to")

    patch.setattr(commands.RolloutCommands, "_previous_version", previous_version)


PLANTED: tuple[Callable[[Patch], None], ...] = (
    a_way_back_leaves_users_there, a_way_back_stops_servers_first, a_way_back_leaves_servers_running,
    a_way_back_does_not_drain, a_way_back_keeps_the_alias, a_way_back_after_a_promotion_forgets_to_start_the_former,
    a_first_model_is_not_withdrawn, a_withdrawn_first_model_stays_champion, a_way_back_drains_before_it_sends_users,
    a_promotion_forgets_the_alias, a_promotion_looks_at_no_files, a_step_looks_at_no_files,
    a_promotion_leaves_the_former_running, a_promotion_does_not_drain, nobody_puts_the_former_up, no_load_test_is_run,
    a_new_controller_waits_for_no_servers, a_resumed_promotion_looks_at_no_files, a_promotion_asks_for_no_servers,
    a_new_controller_sends_everybody_back_first, holding_goes_on, the_judge_is_not_heard, a_step_is_left_out,
    the_first_step_is_the_last, a_share_grows_before_its_step, tracks_are_exchanged, every_step_has_a_salt_of_its_own,
    a_way_back_can_be_called_off, a_way_back_is_aborted, a_failure_is_not_heard, a_way_back_keeps_its_share,
    promoting_by_hand_needs_no_proof, a_state_is_written_after_it_is_acted_on,
    the_state_says_over_before_the_evidence_is_there, a_full_disk_leaves_users_on_the_canary,
    time_without_a_controller_counts, a_new_controller_forgets_the_time_at_the_step, orders_are_not_read,
    a_blind_judge_is_content, a_hiccup_rolls_back, putting_up_does_not_ask_who_serves, two_controllers_may_work,
    an_unfinished_rollout_is_begun_again, a_return_leads_to_what_was_rolled_back,
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    found = first_broken(History.seeded(seed) for seed in range(MOST))
    assert found is not None


def test_a_failing_history_is_shrunk_and_printed_as_a_test(monkeypatch: Patch) -> None:
    a_full_disk_leaves_users_on_the_canary(monkeypatch)
    long, broken = first_broken(History.seeded(seed) for seed in range(MOST)) or (History(), None)
    assert isinstance(broken, BrokenRuleError)

    def still(history: History) -> bool:
        again = play(history)
        return again is not None and again.rule == broken.rule

    short = long.shrink(still)
    assert still(short) and len(short.faults) <= 2 and short.commands == ("canary",)
    text = short.as_test("of_mine", "users first")
    assert "def test_of_mine() -> None:\n    # users first\n    assert play(History(" in text
    rebuilt: dict[str, Any] = {"History": History, "Fault": Fault, "play": play}
    exec(text, rebuilt)  # noqa: S102
    with pytest.raises(AssertionError):
        rebuilt["test_of_mine"]()
