"""The controller of one rollout: the state is saved before and after each phase is executed."""

from __future__ import annotations

import traceback
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Final

from shortlist.contracts import ShortlistError
from shortlist.rollout.action_executor import ActionExecutor
from shortlist.rollout.controller_context import ControllerContext
from shortlist.rollout.evidence.counts import RequestTotals
from shortlist.rollout.fleet import Observer
from shortlist.rollout.interruption import Interrupted, Interruption
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.rollouts import FAULTS, RolloutError, Rollouts
from shortlist.rollout.states.actions import (
    AnalyzeStep,
    RolloutAction,
    RouteAllTraffic,
    StartServers,
    actions,
    resume_actions,
)
from shortlist.rollout.states.events import Abort, Event, Failed, PhaseCompleted, StepAnalyzed
from shortlist.rollout.states.phases import REVERTING_PHASES, WAITING_PHASES, Phase
from shortlist.rollout.states.state_machine import advance
from shortlist.rollout.verdict import make_verdict
from shortlist.storage.records.store import RecordStoreError

_COUNT_SECONDS: Final = 5.0
"""Longest count of all requests after a signal."""
_PHASES_WITHOUT_USERS: Final = frozenset({Phase.VERIFYING, Phase.STARTING, Phase.LOAD_TESTING})
"""Phases in which no user gets the candidate."""


class Controller:
    """Runs a rollout to its end; the caller holds the lock.

    Args:
        rollouts: Where the record is saved.
        context: Servers, registry, load test and canary analysis.
        record: A new rollout, or an unfinished one to resume.
    """

    def __init__(self, rollouts: Rollouts, context: ControllerContext, record: RolloutRecord) -> None:
        self._rollouts = rollouts
        self._context = context
        self._interruption: Interruption = context.interruption()
        self._executor = ActionExecutor(context, record, rollouts.fetched_files_folder(record.id), self._interruption)
        self._record = record
        self._seconds_before = record.elapsed_seconds
        self._started_at = context.clock()
        self._observer: Observer | None = None

    def run(self) -> RolloutRecord:
        """Run the rollout to its end and return its record.

        Raises:
            RolloutError: Its rollback or its draining failed; the next controller resumes it.
        """
        try:
            with self._interruption.handle_signals():
                self._start_or_resume()
                while not self._record.state.final:
                    self._apply_event(self._run_phase())
        except (OSError, RecordStoreError) as error:  # for example a full disk: without its record a rollout must stop
            raise self._unfinished_error(error) from error
        return self._record

    def _start_or_resume(self) -> None:
        state = self._record.state
        if not self._record.history:
            self._save(self._record_now().with_state(state, self._rollouts.now()))
        else:
            self._apply_event(
                self._execute_or_fail(resume_actions(state))
                if state.phase in WAITING_PHASES
                else self._execute_required(resume_actions(state))
            )

    def _run_phase(self) -> Event | None:
        """Execute the actions of the present phase and return the event that follows."""
        state = self._record.state
        phase_done = PhaseCompleted(state.phase, state.step)
        if state.phase not in WAITING_PHASES:
            return self._execute_required(actions(state)) or phase_done
        if event := self._execute_or_fail(actions(state)) or self._analyze():
            return event
        if state.phase is Phase.LOAD_TESTING:
            self._add_notices()
        return None if state.phase is Phase.CONFIRMING and self._is_former_kept() else phase_done

    def _execute_required(self, required_actions: tuple[RolloutAction, ...]) -> Event | None:
        """Execute actions that must succeed; return a command that interrupts them (never during a rollback)."""
        for action in required_actions:
            if command_event := self._pending_command():
                return command_event
            self._executor.execute_with_retries(action)
        return self._pending_command()  # a rollback that was asked for during the last action must not be lost

    def _execute_or_fail(self, candidate_actions: tuple[RolloutAction, ...]) -> Event | None:
        """Execute actions that may fail because of the candidate; return the failure or the command that ends them."""
        phase = self._record.state.phase
        try:
            for action in candidate_actions:
                if command_event := self._pending_command():
                    return command_event
                if not isinstance(action, AnalyzeStep):
                    self._executor.execute_once(action)
        except Interrupted:
            return Abort(self._interruption.reason)
        except ShortlistError as error:
            return Failed(f"{phase.value}: {error}")
        except Exception as error:  # a bug of ours or of a library also rolls back; the traceback is kept
            self._log_traceback()
            return Failed(f"{phase.value}: {type(error).__name__}: {error} (traceback in {self._fault_file})")
        return None

    def _add_notices(self) -> None:
        try:
            notices = dict.fromkeys((*self._record.notices, *self._executor.notices()))
            self._record = self._record.model_copy(update={"notices": tuple(notices)})
        except Exception:  # a notice decides nothing
            self._log_traceback()

    def _analyze(self) -> Event | None:
        """Return the decision of the canary analysis; None in phases without one."""
        state = self._record.state
        if state.phase is not Phase.WATCHING:
            return None
        record = self._record_now()
        try:
            if record.steps[-1].last is not None:
                with self._interruption.interruptible():
                    self._context.sleep(self._context.poll_seconds)
                record = self._record_now()
            observer = self._open_observer()
            with self._interruption.interruptible():  # it only reads; a query may take longer than a pod's grace period
                observation = observer.observe_step(state.step, record.at_step_seconds)
        except Interrupted:
            return Abort(self._interruption.reason)
        except Exception as error:  # without an analysis nothing shows that the canary is good
            self._log_traceback()
            return Failed(f"{state.phase.value}: the canary analysis failed: {type(error).__name__}: {error}")
        self._record = record.with_observation(observation)
        return StepAnalyzed(state.step, observation.decision, observation.reason)

    def _is_former_kept(self) -> bool:
        """Whether the former servers have to run on; waits until the candidate's answers are to be checked again."""
        seconds_left = self._context.keep_former_seconds - self._record_now().in_phase_seconds
        if self._record.state.former is None or seconds_left <= 0:
            return False
        with suppress(Interrupted), self._interruption.interruptible():  # the signal is a pending command afterwards
            self._context.sleep(min(self._context.poll_seconds, seconds_left))
        return True

    def _pending_command(self) -> Event | None:
        """Return the event of a signal or of an operator's command, if it would still change the state."""
        command = self._rollouts.pending_command(self._record.id)
        event = Abort(self._interruption.reason) if self._interruption.reason else command.event if command else None
        return event if event and advance(self._record.state, event)[0] != self._record.state else None

    def _apply_event(self, event: Event | None) -> None:
        """Apply an event to the state and save the record."""
        record = self._record_now()
        if event is not None:
            record = record.with_state(advance(record.state, event)[0], self._rollouts.now())
        if record.state.final:
            record = self._conclude(record)
        self._save(record)

    def _conclude(self, record: RolloutRecord) -> RolloutRecord:
        """Write verdict and page of a finished rollout, before its final state is saved."""
        record = record.model_copy(update={"requests": self._count_requests()})
        self._rollouts.write_verdict(record.id, make_verdict(record))
        try:
            self._rollouts.write_page(record)
        except Exception:
            self._log_traceback()
        self._rollouts.remove_files(record.id)
        return record

    def _count_requests(self) -> RequestTotals | None:
        """Return the counts of the rollout; None where they are not to be had, after a signal within a few seconds."""
        counts: list[RequestTotals] = []

        def count() -> None:
            try:
                counts.append(self._open_observer().total())
            except Exception:  # the verdict is then written without the counts
                self._log_traceback()

        if not self._interruption.reason:
            count()
        else:  # a pod is killed 30 s after its signal, and a log in an object store may take minutes
            thread = Thread(target=count, daemon=True)
            thread.start()
            thread.join(_COUNT_SECONDS)
        return counts[0] if counts else None

    def _save(self, record: RolloutRecord) -> None:
        self._record = record
        self._rollouts.save(record)
        try:
            self._context.on_change(record)
        except Exception:  # for example a closed terminal, which must not end the rollout
            self._log_traceback()

    def _unfinished_error(self, error: OSError | RecordStoreError) -> RolloutError:
        state = self._record.state
        users_text = "no route was changed"
        # A rollback that could not be recorded has not begun.
        has_users_to_return = (
            state.phase in WAITING_PHASES | REVERTING_PHASES and state.reached not in _PHASES_WITHOUT_USERS
        )
        if state.former is not None and has_users_to_return:
            if state.reached is Phase.DRAINING:  # its servers may be stopped already; else the users are routed first
                self._executor.execute_with_retries(StartServers(state.former))
            self._executor.execute_with_retries(RouteAllTraffic(state.former))
            users_text = f"everybody was sent back to version {state.former}"
        return RolloutError(
            f"{self._rollouts.location(self._record.id)}: cannot be written ({error}); {users_text}."
            f" Fix that; then make deploy-canary SPEC={self._record.spec} resumes the rollout, or make rollback"
            f" SPEC={self._record.spec} ends it."
        )

    def _record_now(self) -> RolloutRecord:
        return self._record.with_elapsed(self._seconds_before + self._context.clock() - self._started_at)

    def _open_observer(self) -> Observer:
        if self._observer is None:
            self._observer = self._context.observe(self._record)
        return self._observer

    def _log_traceback(self) -> None:
        with suppress(OSError):  # a full disk must not stop the rollback
            self._rollouts.log_fault(self._record.id, traceback.format_exc())

    @property
    def _fault_file(self) -> Path:
        return self._rollouts.rollout_folder(self._record.id) / FAULTS
