"""Simulated rollouts with faults keep every rule; each of the planted bugs breaks one and is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from shortlist.rollout import action_executor as performer
from shortlist.rollout import commands, controller
from shortlist.rollout.deployment import Route
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.rollouts import RolloutError, Rollouts
from shortlist.rollout.states import actions as asked
from shortlist.rollout.states import state_machine as machine
from shortlist.rollout.states.actions import (
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
from shortlist.rollout.states.events import Abort, Event, Failed, PhaseCompleted, Promote, StepAnalyzed
from shortlist.rollout.states.phases import REVERTING_PHASES, Phase, RolloutState
from tests.simulation.rollouts.history import Fault, History
from tests.simulation.rollouts.rules import BrokenRuleError
from tests.simulation.rollouts.world import play

Patch = pytest.MonkeyPatch
SEEDS = 300
"""Seeded histories of the suite; `make bench NAME=simulate` plays thousands a minute."""
MAX_HISTORIES = 2_000
"""Most histories until a planted bug must break a rule."""


def first_broken(histories: Iterator[History]) -> tuple[History, BaseException] | None:
    """Return the first history that breaks a rule, and how."""
    for history in histories:
        if (broken := play(history)) is not None:
            return history, broken
    return None


@pytest.mark.long
def test_seeded_histories_keep_every_rule() -> None:
    broken_history = first_broken(History.seeded(seed) for seed in range(SEEDS))
    assert broken_history is None, broken_history[0].as_test("found", str(broken_history[1]))


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.KILL_AFTER, Fault.STACK_DOWN, Fault.FAIL_AFTER])
@pytest.mark.parametrize("history", [History(), History(bad_from=1), History(first=True)], ids=["good", "bad", "first"])
def test_a_fault_at_any_call_keeps_every_rule(history: History, fault: Fault) -> None:
    broken_history = first_broken(replace(history, faults=((at, fault),)) for at in range(1, 90))
    assert broken_history is None, broken_history[0].as_test("found", str(broken_history[1]))


def test_a_simulation_is_deterministic() -> None:
    worlds = [History.seeded(seed) for seed in range(20)]
    assert worlds == [History.seeded(seed) for seed in range(20)]
    assert [str(play(action)) for action in worlds] == [str(play(action)) for action in worlds]


def test_files_that_are_swapped_before_everybody_gets_them_are_found_by_the_next_controller() -> None:
    # Found by simulation: a resumed promotion routed all users to the candidate before it verified the files.
    faults = ((31, Fault.TAMPER), (45, Fault.KILL))
    assert play(History(steps=(10, 100), holds=1, faults=faults)) is None


def test_a_promotion_commanded_while_the_servers_are_down_starts_the_servers() -> None:
    # Found by simulation: the command was executed before the new controller had started the candidate's servers.
    faults = ((80, Fault.KILL_THEN_PROMOTE), (83, Fault.STACK_DOWN))
    assert play(History(commands=("canary", "canary"), faults=faults)) is None


def test_users_are_routed_back_when_a_rollback_cannot_be_written() -> None:
    # Found by simulation: users stayed on a canary after the analysis had rolled it back.
    for at in range(30, 60):
        assert play(History(bad_from=1, faults=((at, Fault.FAIL),))) is None, at


def test_a_first_model_withdrawn_while_it_is_promoted_loses_its_alias() -> None:
    for at in range(20, 60):
        for champion in (True, False):
            history = History(first=True, champion=champion, faults=((at, Fault.KILL_THEN_ROLL_BACK),))
            assert play(history) is None, at


# --- planted bugs


def patch_phase(
    patch: Patch, phase: Phase, change: Callable[[tuple[RolloutAction, ...]], tuple[RolloutAction, ...]]
) -> None:
    """Change the actions of a phase."""
    whole = asked._ACTIONS_BY_PHASE[phase]
    patch.setattr(
        asked,
        "_ACTIONS_BY_PHASE",
        MappingProxyType({**asked._ACTIONS_BY_PHASE, phase: lambda state: change(whole(state))}),
    )


def leave_out(*kinds: type) -> Callable[[tuple[RolloutAction, ...]], tuple[RolloutAction, ...]]:
    """Return a change that removes actions of some kinds."""
    return lambda actions: tuple(action for action in actions if not isinstance(action, kinds))


def patch_rollback(patch: Patch, change: Callable[[tuple[RolloutAction, ...]], tuple[RolloutAction, ...]]) -> None:
    """Change the actions of a rollback."""
    patch_phase(patch, Phase.ROLLING_BACK, change)
    patch_phase(patch, Phase.ABORTING, change)


def patch_resume(
    patch: Patch, change: Callable[[RolloutState, tuple[RolloutAction, ...]], tuple[RolloutAction, ...]]
) -> None:
    """Change the first actions of a new controller."""
    whole = asked.resume_actions
    patch.setattr(controller, "resume_actions", lambda state: change(state, whole(state)))


def patch_events(patch: Patch, change: Callable[[RolloutState, Event, RolloutState], RolloutState]) -> None:
    """Change the state after an event; the change gets the previous state, the event and the right next state."""
    whole = machine._next_state
    patch.setattr(machine, "_next_state", lambda state, event: change(state, event, whole(state, event)))


def patch_routes(patch: Patch, change: Callable[[Route], Route]) -> None:
    """Change the route of a share."""
    whole = performer.ActionExecutor._set_traffic_split

    def send(self: Any, action: SetTrafficSplit) -> None:
        fleet = self._context.fleet
        apply_route = fleet.route
        fleet.route = lambda route: apply_route(change(route))
        try:
            whole(self, action)
        finally:
            del fleet.route

    patch.setattr(performer.ActionExecutor, "_set_traffic_split", send)
    rebind_executors(patch)


def rebind_executors(patch: Patch) -> None:
    """Let action executors look their methods up by name, so that patched ones are used."""
    whole = performer.ActionExecutor.__init__

    def init(self: Any, *arguments: Any) -> None:
        whole(self, *arguments)
        names = {
            SetTrafficSplit: "_set_traffic_split",
            EnsureServing: "_ensure_serving",
            DrainRequests: "_drain_requests",
            RouteAllTraffic: "_route_all_traffic",
            VerifyServedFiles: "_verify_served_files",
        }
        self._executors = {**self._executors, **{kind: getattr(self, name) for kind, name in names.items()}}

    patch.setattr(performer.ActionExecutor, "__init__", init)


def patch_method(patch: Patch, owner: type, name: str, changed: Callable[..., Any]) -> None:
    """Replace a method by a function that gets the original method as its first argument."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *arguments, **keywords: changed(original, *arguments, **keywords))


def a_rollback_leaves_users_on_the_canary(patch: Patch) -> None:
    patch_rollback(patch, leave_out(RouteAllTraffic))


def a_rollback_stops_servers_first(patch: Patch) -> None:
    patch_rollback(patch, lambda all_: tuple(sorted(all_, key=lambda action: not isinstance(action, StopServers))))


def a_rollback_leaves_servers_running(patch: Patch) -> None:
    patch_rollback(patch, leave_out(StopServers))


def a_rollback_does_not_drain(patch: Patch) -> None:
    patch_rollback(patch, leave_out(DrainRequests))


def a_rollback_keeps_the_alias(patch: Patch) -> None:
    patch_rollback(patch, leave_out(SetChampionAlias))


def a_rollback_after_a_promotion_does_not_start_the_former(patch: Patch) -> None:
    patch_rollback(patch, leave_out(StartServers))


def a_first_model_is_not_withdrawn(patch: Patch) -> None:
    patch_rollback(patch, leave_out(RemoveRoute))


def a_withdrawn_first_model_stays_champion(patch: Patch) -> None:
    patch_rollback(patch, lambda all_: tuple(action for action in all_ if action != SetChampionAlias(None)))


def a_rollback_drains_before_it_routes_users(patch: Patch) -> None:
    patch_rollback(patch, lambda all_: tuple(sorted(all_, key=lambda action: not isinstance(action, DrainRequests))))


def a_promotion_forgets_the_alias(patch: Patch) -> None:
    patch_phase(patch, Phase.PROMOTING, leave_out(SetChampionAlias))
    patch_resume(patch, lambda _, all_: leave_out(SetChampionAlias)(all_))


def a_promotion_verifies_no_files(patch: Patch) -> None:
    patch_phase(patch, Phase.PROMOTING, leave_out(VerifyServedFiles))


def a_step_verifies_no_files(patch: Patch) -> None:
    patch_phase(patch, Phase.SHIFTING, leave_out(VerifyServedFiles))
    patch_resume(patch, lambda _, all_: leave_out(VerifyServedFiles)(all_))


def a_promotion_leaves_the_former_running(patch: Patch) -> None:
    patch_phase(patch, Phase.DRAINING, leave_out(StopServers))


def a_promotion_does_not_drain(patch: Patch) -> None:
    patch_phase(patch, Phase.DRAINING, leave_out(DrainRequests))


def the_former_version_is_not_started(patch: Patch) -> None:
    patch_phase(patch, Phase.STARTING, leave_out(EnsureServing))


def no_load_test_is_run(patch: Patch) -> None:
    patch_phase(patch, Phase.LOAD_TESTING, lambda _: (AnalyzeStep(0),))


def a_new_controller_waits_for_no_servers(patch: Patch) -> None:
    patch_resume(patch, lambda _, all_: leave_out(StartServers)(all_))


def a_resumed_promotion_verifies_no_files(patch: Patch) -> None:
    def change(state: RolloutState, all_: tuple[RolloutAction, ...]) -> tuple[RolloutAction, ...]:
        return (
            (StartServers(state.candidate), RouteAllTraffic(state.candidate))
            if state.phase is Phase.PROMOTING
            else all_
        )

    patch_resume(patch, change)


def a_promotion_starts_no_servers(patch: Patch) -> None:
    patch_phase(patch, Phase.PROMOTING, leave_out(StartServers))


def a_new_controller_sends_everybody_back_first(patch: Patch) -> None:
    def change(state: RolloutState, all_: tuple[RolloutAction, ...]) -> tuple[RolloutAction, ...]:
        return (RouteAllTraffic(state.former), *all_) if state.phase is Phase.WATCHING and state.former else all_

    patch_resume(patch, change)


def a_hold_proceeds(patch: Patch) -> None:
    def change(state: RolloutState, event: Event, right_state: RolloutState) -> RolloutState:
        is_hold = isinstance(event, StepAnalyzed) and event.decision == "hold" and state.phase is Phase.WATCHING
        return machine._apply_decision(state, "proceed", "") if is_hold else right_state

    patch_events(patch, change)


def the_analysis_is_ignored(patch: Patch) -> None:
    def change(state: RolloutState, event: Event, right_state: RolloutState) -> RolloutState:
        bad = isinstance(event, StepAnalyzed) and event.decision == "roll_back" and state.phase is Phase.WATCHING
        return machine._apply_decision(state, "proceed", "") if bad else right_state

    patch_events(patch, change)


def a_step_is_left_out(patch: Patch) -> None:
    whole = machine._shift
    patch.setattr(
        machine, "_shift",
        lambda state, step, reason: whole(state, len(state.steps) - 1 if step == 1 else step, reason),
    )  # fmt: skip


def the_first_step_is_the_last(patch: Patch) -> None:
    def change(state: RolloutState, event: Event, right_state: RolloutState) -> RolloutState:
        passed = right_state.phase is Phase.SHIFTING and right_state.step == 1 and state.phase is Phase.WATCHING
        return machine._forward(state, Phase.PROMOTING, percent=100) if passed else right_state

    patch_events(patch, change)


def a_share_grows_before_its_step(patch: Patch) -> None:
    patch_routes(patch, lambda route: route.model_copy(update={"percent": min(2 * route.percent, 100)}))


def tracks_are_exchanged(patch: Patch) -> None:
    patch_routes(patch, lambda route: route.model_copy(update={"stable": route.canary, "canary": route.stable}))


def every_step_has_another_salt(patch: Patch) -> None:
    patch_routes(patch, lambda route: route.model_copy(update={"rollout": f"{route.rollout}-{route.step}"}))


def a_rollback_can_be_cancelled(patch: Patch) -> None:
    def change(state: RolloutState, event: Event, right_state: RolloutState) -> RolloutState:
        is_command = isinstance(event, Promote) and state.phase in REVERTING_PHASES and state.former is not None
        return machine._forward(state, Phase.PROMOTING, percent=100) if is_command else right_state

    patch_events(patch, change)


def a_rollback_is_aborted(patch: Patch) -> None:
    def change(state: RolloutState, event: Event, right_state: RolloutState) -> RolloutState:
        is_command = isinstance(event, Abort) and state.phase is Phase.ROLLING_BACK
        return machine._revert(state, Phase.ABORTING, event.reason) if is_command else right_state

    patch_events(patch, change)


def a_failure_is_ignored(patch: Patch) -> None:
    def change(state: RolloutState, event: Event, right_state: RolloutState) -> RolloutState:
        failed = isinstance(event, Failed) and state.phase in {Phase.SHIFTING, Phase.PROMOTING, Phase.LOAD_TESTING}
        return machine._state_after_phase(state) if failed else right_state

    patch_events(patch, change)


def a_rollback_keeps_the_share(patch: Patch) -> None:
    whole = machine._revert
    patch.setattr(
        machine, "_revert",
        lambda state, phase, reason: whole(state, phase, reason).model_copy(update={"percent": state.percent}),
    )  # fmt: skip


def a_promotion_by_hand_skips_the_load_test(patch: Patch) -> None:
    def change(state: RolloutState, event: Event, right_state: RolloutState) -> RolloutState:
        early = isinstance(event, PhaseCompleted) and state.phase is Phase.STARTING and right_state.straight
        return machine._forward(state, Phase.PROMOTING, percent=100) if early else right_state

    patch_events(patch, change)


def a_state_is_written_after_it_is_acted_on(patch: Patch) -> None:
    def save(whole: Callable[..., None], self: Any, record: RolloutRecord) -> None:
        if record.state.phase is not Phase.SHIFTING:
            whole(self, record)

    patch_method(patch, Rollouts, "save", save)


def the_final_state_is_saved_before_the_evidence(patch: Patch) -> None:
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

    patch_method(patch, controller.Controller, "__init__", init)


def a_new_controller_forgets_the_time_at_the_step(patch: Patch) -> None:
    def with_observation(self: Any) -> RolloutRecord:
        record: RolloutRecord = self._record.model_copy(update={"elapsed_seconds": 0.0})
        return record.with_elapsed(self._context.clock() - self._started_at)

    patch.setattr(controller.Controller, "_record_now", with_observation)


def commands_are_not_read(patch: Patch) -> None:
    patch.setattr(Rollouts, "pending_command", lambda *_: None)


def a_failing_analysis_proceeds(patch: Patch) -> None:
    def analyze(whole: Callable[..., Event | None], self: Any) -> Event | None:
        event = whole(self)
        return StepAnalyzed(self._record.state.step, "proceed", "") if isinstance(event, Failed) else event

    patch_method(patch, controller.Controller, "_analyze", analyze)


def a_passing_failure_rolls_back(patch: Patch) -> None:
    patch.setattr(performer, "_ATTEMPTS", 1)


def ensuring_a_version_ignores_what_serves(patch: Patch) -> None:
    def stand(self: Any, action: EnsureServing) -> None:
        self._start_servers(StartServers(action.version))
        self._route_all_traffic(RouteAllTraffic(action.version))

    patch.setattr(performer.ActionExecutor, "_ensure_serving", stand)
    rebind_executors(patch)


def two_controllers_may_work(patch: Patch) -> None:
    patch.setattr(Rollouts, "lock", lambda *_: nullcontext())


def an_unfinished_rollout_is_restarted(patch: Patch) -> None:
    patch.setattr(Rollouts, "unfinished", lambda _: None)


def a_return_leads_to_a_rolled_back_version(patch: Patch) -> None:
    def previous_version(self: Any) -> int:
        for record in self._rollouts.newest_first():
            if record.state.former is not None:
                return int(record.state.former)
        raise RolloutError("nothing to return to")

    patch.setattr(commands.RolloutCommands, "_previous_version", previous_version)


PLANTED: tuple[Callable[[Patch], None], ...] = (
    a_rollback_leaves_users_on_the_canary, a_rollback_stops_servers_first, a_rollback_leaves_servers_running,
    a_rollback_does_not_drain, a_rollback_keeps_the_alias, a_rollback_after_a_promotion_does_not_start_the_former,
    a_first_model_is_not_withdrawn, a_withdrawn_first_model_stays_champion, a_rollback_drains_before_it_routes_users,
    a_promotion_forgets_the_alias, a_promotion_verifies_no_files, a_step_verifies_no_files,
    a_promotion_leaves_the_former_running, a_promotion_does_not_drain, the_former_version_is_not_started,
    no_load_test_is_run, a_new_controller_waits_for_no_servers, a_resumed_promotion_verifies_no_files,
    a_promotion_starts_no_servers,
    a_new_controller_sends_everybody_back_first, a_hold_proceeds, the_analysis_is_ignored, a_step_is_left_out,
    the_first_step_is_the_last, a_share_grows_before_its_step, tracks_are_exchanged, every_step_has_another_salt,
    a_rollback_can_be_cancelled, a_rollback_is_aborted, a_failure_is_ignored, a_rollback_keeps_the_share,
    a_promotion_by_hand_skips_the_load_test, a_state_is_written_after_it_is_acted_on,
    the_final_state_is_saved_before_the_evidence, a_full_disk_leaves_users_on_the_canary,
    time_without_a_controller_counts, a_new_controller_forgets_the_time_at_the_step, commands_are_not_read,
    a_failing_analysis_proceeds, a_passing_failure_rolls_back, ensuring_a_version_ignores_what_serves,
    two_controllers_may_work, an_unfinished_rollout_is_restarted, a_return_leads_to_a_rolled_back_version,
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_every_planted_bug_breaks_a_rule(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    broken_history = first_broken(History.seeded(seed) for seed in range(MAX_HISTORIES))
    assert broken_history is not None


def test_a_failing_history_is_shrunk_and_printed_as_a_test(monkeypatch: Patch) -> None:
    a_full_disk_leaves_users_on_the_canary(monkeypatch)
    long, broken = first_broken(History.seeded(seed) for seed in range(MAX_HISTORIES)) or (History(), None)
    assert isinstance(broken, BrokenRuleError)

    def breaks_same_rule(history: History) -> bool:
        replayed = play(history)
        return replayed is not None and replayed.rule == broken.rule

    short = long.shrink(breaks_same_rule)
    assert breaks_same_rule(short) and len(short.faults) <= 2 and short.commands == ("canary",)
    text = short.as_test("of_mine", "users first")
    assert "def test_of_mine() -> None:\n    # users first\n    assert play(History(" in text
    rebuilt: dict[str, Any] = {"History": History, "Fault": Fault, "play": play}
    exec(text, rebuilt)  # noqa: S102
    with pytest.raises(AssertionError):
        rebuilt["test_of_mine"]()
