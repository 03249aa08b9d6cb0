"""A simulated world around the real commands, controller, action executor and state machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from shortlist.contracts import ShortlistError
from shortlist.rollout.checks.observations import Decision, Observation
from shortlist.rollout.commands import RolloutCommands
from shortlist.rollout.controller_context import ControllerContext
from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.rollouts import STATE, RolloutError
from shortlist.rollout.states.operator_commands import COMMAND_FILE, OperatorCommand
from shortlist.rollout.states.phases import REVERTING_PHASES, Phase
from shortlist.spec.serving import Canary
from shortlist.storage.storage_config import StorageConfig
from tests.simulation.rollouts.history import Fault, History
from tests.simulation.rollouts.parts import (
    SPEC,
    MemoryStore,
    ScriptedObserver,
    SimulatedFleet,
    SimulatedInterruption,
    SimulatedRegistry,
    SimulatedRollouts,
)
from tests.simulation.rollouts.rules import BrokenRuleError, RolloutInvariants

T = TypeVar("T")

_CALL_SECONDS: Final = 0.001
_PROOF_SECONDS: Final = 5.0
_RESTART_SECONDS: Final = 2.0
_REST_SECONDS: Final = 1.0
"""Time between two controllers."""
_OUTAGE_CALLS: Final = 5
_ATTEMPTS: Final = 4
"""Attempts of a short call before its failure counts as the candidate's."""
_SHORT: Final = frozenset({"route", "withdraw", "set_alias", "retire"})
_HARMLESS: Final = frozenset({"write", "total", "sleep"})
"""Calls whose failure is no reason to roll back: the next controller resumes."""
_MOMENT: Final = 0.1
"""Largest difference in seconds between two clocks of the simulation."""
_DIGEST: Final = "0" * 16
_DAY: Final = datetime(2026, 1, 1, tzinfo=UTC)


class KilledError(BaseException):
    """A simulated SIGKILL: nothing in the code catches it."""


class World:
    """The simulated world of a history: by default version 1 serves and version 2 is the blessed candidate."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.policy = _policy(history.steps)
        self.now = 1_000.0
        self.calls = 0
        self.store, self.servers, self.models, self.rules = (
            MemoryStore(self),
            SimulatedFleet(self),
            SimulatedRegistry(self),
            RolloutInvariants(self),
        )
        self.rollouts = SimulatedRollouts(
            Path("simulated"), SPEC, self.store, now=lambda: _DAY + timedelta(seconds=self.now), digits=self._digits
        )
        self.record: RolloutRecord | None = None
        """The last written record."""
        self.load_tested: set[int] = set()
        self.tampered: set[int] = set()
        self.proceeded: dict[str, set[int]] = {}
        """Steps that passed the analysis, by rollout."""
        self.by_hand: set[str] = set()
        """Rollouts that an operator promotes without evidence."""
        self.disturbed = False
        """Whether a fault occurred for which a good candidate may be rolled back."""
        self.store_failed = self.write_failed = False
        self.rival = False
        self.route_before: Route | None = None
        self._faults = dict(history.faults)
        self._outages: Counter[str] = Counter()
        self._in_a_row: Counter[str] = Counter()
        self._last_failed = self._tampers = False
        self._looks: Counter[tuple[str, int]] = Counter()
        self._watched: dict[tuple[str, int], float] = {}
        self._signals: SimulatedInterruption | None = None
        self._command = self._next_command = ""
        self._processes, self._alive, self._began, self._saved_at = 0, 0.0, 0.0, 0.0
        self._restarts_at = float("inf")
        self._send_back = self._overruled = False
        self._parents: dict[int, int | None] = {}
        self._set_up()

    def _set_up(self) -> None:
        history = self.history
        self.models.aliases["candidate"] = 2
        if history.first:
            if history.champion:
                self.models.aliases["champion"] = 2
            return
        if history.champion or not history.serving:
            self.models.aliases["champion"] = 1
        if history.serving:
            self.servers.deployed, self.servers.ready, self.servers.now = {1}, {1}, Route(stable=1)

    # --- state for the rules

    @property
    def alive(self) -> float:
        """Seconds that controllers worked so far."""
        return self._alive + self.now - self._began

    def expect(self, holds: bool, rule: str, message: str) -> None:
        """Raise `BrokenRuleError` unless a condition holds."""
        self.rules.expect(holds, rule, message)

    # --- calls of a controller

    def call(self, kind: str, effect: Callable[[], T], error: Callable[[], Exception] | None = None) -> T:
        """Execute a call of a controller, unless the history has a fault for it.

        Args:
            kind: Kind of the call.
            effect: Effect of the call.
            error: Returns the error of a failing call; None: it never fails.
        """
        self.calls += 1
        self.now += _CALL_SECONDS
        if self.now >= self._restarts_at:
            self.servers.ready, self._restarts_at = set(self.servers.deployed), float("inf")
        fault = None if self.rival else self._faults.pop(self.calls, None)
        if fault is not None:
            self._strike(fault, kind, effect)
        if error is not None and not self.rival and self._outages[kind]:
            self._outages[kind] -= 1
            lost = fault is Fault.FAIL_AFTER
            if lost:
                effect()
            self._failed(kind)
            raise error()
        returned = effect()
        self._last_failed, self._in_a_row[kind] = False, 0
        return returned

    def _strike(self, fault: Fault, kind: str, effect: Callable[[], Any]) -> None:
        match fault:
            case Fault.KILL_AFTER:
                effect()
                raise KilledError
            case Fault.STACK_DOWN:
                self.servers.ready, self._restarts_at = set(), self.now + _RESTART_SECONDS
                raise KilledError
            case Fault.KILL | Fault.KILL_THEN_ROLL_BACK | Fault.KILL_THEN_PROMOTE:
                self._next_command = {
                    Fault.KILL_THEN_ROLL_BACK: "rollback",
                    Fault.KILL_THEN_PROMOTE: "promote",
                }.get(fault, "")
                raise KilledError
            case Fault.FAIL | Fault.FAIL_AFTER:
                self._outages[kind] += 1
            case Fault.OUTAGE:
                self._outages[kind] += _OUTAGE_CALLS
            case Fault.SIGNAL:
                if self._signals is None:
                    raise KilledError
                self.disturbed = True
                self._signals.interrupt("interrupted by SIGTERM")
            case Fault.ROLL_BACK | Fault.PROMOTE:
                self._order(fault)
            case Fault.TAMPER:
                self._tampers = True
            case Fault.RIVAL:
                self._start_rival()

    def _failed(self, kind: str) -> None:
        self._last_failed = True
        self._in_a_row[kind] += 1
        self.store_failed |= kind in {"write", "read"}
        self.write_failed |= kind == "write" and self._signals is not None  # by a controller
        short = kind in _SHORT and self._in_a_row[kind] < _ATTEMPTS
        self.disturbed |= kind not in _HARMLESS and not short

    def _order(self, fault: Fault) -> None:
        record = self.record
        if record is None or record.state.final:
            return
        if fault is Fault.PROMOTE:
            self.by_hand.add(record.id)
            self._overruled = True  # the newest command counts
        else:
            self.disturbed = True
        order = OperatorCommand(action="promote" if fault is Fault.PROMOTE else "rollback", reason="ordered")
        self.store.texts_by_name[f"{record.id}/{COMMAND_FILE}"] = order.model_dump_json() + "\n"

    def _start_rival(self) -> None:
        if self._signals is None:  # no controller is at work yet
            return
        self.rival, signals = True, self._signals
        try:
            self._roll_out(0.0).canary()
        except RolloutError:
            return
        finally:
            self.rival, self._signals = False, signals
        raise BrokenRuleError("one controller", "another process was let in")

    def on_write(self, name: str) -> None:
        """Check that a record may be written."""
        self.expect(not self.rival, "one controller", f"another process writes {name}")

    def sleep(self, seconds: float) -> None:
        """Advance the clock."""

        def pass_by() -> None:
            route = self.servers.now
            late = self._send_back and route is not None and route.canary is not None and not self._last_failed
            self.expect(not late, "users first", "a controller waits while users get what the judge sent back")
            self.now += seconds
            waits = self.record is not None and not self.record.state.final and not self._last_failed
            if self._tampers and waits and self.record is not None:
                self._tampers = False
                self.tampered.add(self.record.state.candidate)

        self.call("sleep", pass_by)

    def saved(self, record: RolloutRecord) -> None:
        """Check and keep a written record."""
        if self._command != "canary" and (self.record is None or self.record.id != record.id):
            self.by_hand.add(record.id)  # a promotion or a return without a rollout under way
        self.rules.check_record(record)
        self.record, self._saved_at = record, self.now
        if record.state.phase in REVERTING_PHASES and record.state.percent == 0 and not self._route_has_canary():
            self._send_back = False

    def observe(self, rollout: str, step: int, at_step_seconds: float) -> Observation:
        """Return the observation of a step that the history declares."""
        record = self.record
        is_watching = record is not None and (record.id, record.state.phase, record.state.step) == (
            rollout,
            Phase.WATCHING,
            step,
        )
        self.expect(is_watching, "written down first", f"step {step} is judged before it is written down")
        assert record is not None
        began = self._watched.setdefault((rollout, step), self.alive)
        self.expect(at_step_seconds <= self.alive - began + _MOMENT, "time", "more of it than was spent at the step")
        min_seconds = record.at_step_seconds + (self.now - self._saved_at if record is self.record else 0) - _MOMENT
        self.expect(
            at_step_seconds >= min_seconds,
            "time",
            f"{at_step_seconds:.1f} s at the step, at least {min_seconds:.1f} were",
        )
        history = self.history
        self._looks[rollout, step] += 1
        if history.bad_from is not None and step >= history.bad_from:
            self._send_back = True
            return _observation("roll_back")
        if self._looks[rollout, step] <= history.holds:
            return _observation("hold")
        self.proceeded.setdefault(rollout, set()).add(step)
        return _observation("promote" if step == len(history.steps) - 1 else "proceed")

    def load_test(self, deployment: Deployment) -> Sequence[str]:
        """Load-test a version."""

        def load() -> Sequence[str]:
            self.now += _PROOF_SECONDS
            if self.history.slow:
                return ("p99 800 ms > 500 ms",)
            self.load_tested.add(deployment.version)
            return ()

        return self.call("load_test", load, _fault)

    def prepare(self, models: object, version: int, store: Path | StorageConfig | None, to: Path | None) -> Deployment:
        """Return the deployment of a version."""
        return self.call("prepare", lambda: _deployment(version), _fault)

    def _roll_out(self, base: float) -> RolloutCommands:
        def hear() -> SimulatedInterruption:
            self._signals = SimulatedInterruption()
            return self._signals

        return RolloutCommands(
            self.rollouts,
            self.policy,
            ControllerContext(
                fleet=self.servers,
                models=self.models,
                observe=lambda record: ScriptedObserver(self, record.id),
                load_test=self.load_test,
                on_change=self.saved,
                patience_seconds=0.05,
                clock=lambda: self.now + base,
                sleep=self.sleep,
                interruption=hear,
                prepare_blessed=self.prepare,
                prepare_registered=self.prepare,
            ),
        )

    def _digits(self) -> str:
        return f"{self._processes:04x}"

    def _route_has_canary(self) -> bool:
        return self.servers.now is not None and self.servers.now.canary is not None

    # --- processes, one after the other

    def play(self) -> None:
        """Run all commands, each until it is executed or refused.

        Raises:
            BrokenRuleError: A rule is broken.
        """
        for number, command in enumerate(self.history.commands):
            if command != "rollback":
                self.models.aliases["candidate"] = 2 + number
            self._obey(command)

    def _obey(self, command: str) -> None:
        """Start controllers until a command is executed, or refused for a valid reason."""
        finished_before = self.finished_rollouts()
        self.disturbed, self.load_tested, self.route_before = False, set(), self.servers.now
        parent = self._parents.get(self.servers.now.stable) if self.servers.now is not None else None
        next_command = command
        for _ in range((_OUTAGE_CALLS + 2) * len(self.history.faults) + 3):
            struck, unfinished = len(self._faults) + self._outages.total(), self._unfinished()
            try:
                self._process(next_command, unfinished)
            except KilledError:
                pass
            except (ShortlistError, OSError) as error:
                self._check_users_sent_back()
                if self._unfinished() is None and struck == len(self._faults) + self._outages.total():
                    refused = unfinished is None and self._may_refuse(next_command, parent)
                    self.expect(refused, "commands", f"{next_command} is refused: {error}")
                    if next_command == command:
                        return
            else:
                back = next_command != "rollback" or unfinished is None or self._overruled or self._went_back()
                self.expect(back, "a rollback rolls back", "it was ordered, and the version was promoted")
            if len(self.finished_rollouts()) > len(finished_before):
                self._check_final(parent)
                return
            next_command = self._next_command or (command if self._unfinished() is None else "canary")
        raise BrokenRuleError("a rollout always ends", f"{self._processes} controllers did not end it")

    def _process(self, command: str, unfinished: RolloutRecord | None) -> None:
        """Run the process of one controller, whose clock has an arbitrary start."""
        self._processes += 1
        self._command, self._signals, self._next_command = command, None, ""
        self.store_failed = self.write_failed = False
        self._send_back = self._last_failed = self._overruled = False
        self._began = self.now
        if unfinished is not None:
            self._note_command(command, unfinished)
        roll_out = self._roll_out(base=self._processes * 7_919.0 % 1_000 - 500)
        try:
            getattr(roll_out, command)()
        finally:
            latest = self._latest()
            if latest is not None and latest != self.record:  # it was killed between writing and `on_change`
                self.saved(latest)
            self._alive = self.alive
            self.now += _REST_SECONDS
            self._began = self.now

    def _check_users_sent_back(self) -> None:
        """Check that users were routed back when a controller stopped because it could not write."""
        record = self.record
        if record is None or not self.write_failed or record.state.former is None:
            return
        if record.state.phase in {Phase.SHIFTING, Phase.WATCHING, *REVERTING_PHASES}:
            back = self.servers.now is None or self.servers.now == Route(stable=record.state.former)
            back |= bool(self._outages["route"] or self._outages["deploy"] or self._outages["wait_ready"])
            self.expect(
                back, "users first", f"{self.servers.now} though nothing can be written in {record.state.phase}"
            )

    def _note_command(self, command: str, unfinished: RolloutRecord) -> None:
        if command == "promote":
            self.by_hand.add(unfinished.id)
        elif command == "rollback":
            self.disturbed = True

    def _may_refuse(self, command: str, parent: int | None) -> bool:
        route = self.servers.now
        if command == "rollback":
            return route is None or parent is None
        return route is not None and route.stable == self.models.aliases["candidate"]

    def _went_back(self) -> bool:
        record = self._latest()
        return record is not None and record.state.phase in {Phase.ABORTED, Phase.ROLLED_BACK}

    def _check_final(self, parent: int | None) -> None:
        record = self._latest()
        assert record is not None
        if record != self.record:
            self.saved(record)
        if record.returning:
            self.expect(record.state.candidate == parent, "commands", f"returned to {record.state.candidate}")
        self.rules.check_final(record)
        if record.state.phase is Phase.PROMOTED and not record.returning:
            self._parents[record.state.candidate] = record.state.former

    def finished_rollouts(self) -> list[str]:
        """Return the ids of finished rollouts; at most one is unfinished."""
        ids = [name.partition("/")[0] for name in self.store.names("") if name.endswith(f"/{STATE}")]
        latest = self._latest()
        return ids if latest is None or latest.state.final else ids[:-1]

    def _unfinished(self) -> RolloutRecord | None:
        latest = self._latest()
        return latest if latest is not None and not latest.state.final else None

    def _latest(self) -> RolloutRecord | None:
        names = [name for name in self.store.names("") if name.endswith(f"/{STATE}")]
        return _parsed(self.store.texts_by_name[names[-1]]) if names else None


def play(history: History) -> BrokenRuleError | None:
    """Simulate a history; return the rule that it breaks, or None."""
    try:
        World(history).play()
    except BrokenRuleError as error:
        return error
    return None


@cache
def _policy(steps: tuple[int, ...]) -> Canary:
    return Canary(steps=steps, interval_seconds=1, deadline_seconds=60, drain_seconds=0.5)


@cache
def _observation(decision: Decision) -> Observation:
    return Observation(decision=decision, reason=f"the history says {decision}")


@cache
def _deployment(version: int) -> Deployment:
    return Deployment(version=version, kind="trees", model_folder=Path("model"), digest=_DIGEST, store=None)


def _parsed(text: str) -> RolloutRecord:
    return RolloutRecord.model_validate_json(text)


def _fault() -> Exception:
    return ShortlistError("no answer")
