"""Driving one rollout to its end: every step is written down before and after it is taken."""

from __future__ import annotations

import traceback
from contextlib import suppress
from pathlib import Path
from typing import Final

from shortlist.contracts import ShortlistError
from shortlist.rollout.action_executor import ActionExecutor
from shortlist.rollout.actions import AnalyzeStep, RolloutAction, RouteAllTraffic, StartServers, actions, resume_actions
from shortlist.rollout.controller_context import ControllerContext
from shortlist.rollout.events import Abort, Done, Event, Failed, StepAnalyzed
from shortlist.rollout.fleet import Observer
from shortlist.rollout.interruption import Interrupted, Interruption
from shortlist.rollout.phases import REVERTING_PHASES, WAITING_PHASES, Phase
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.rollouts import FAULTS, RolloutError, Rollouts
from shortlist.rollout.state_machine import advance
from shortlist.rollout.verdict import verdict_of
from shortlist.storage.records.store import RecordStoreError

_UNTOUCHED: Final = frozenset({Phase.VERIFYING, Phase.STARTING, Phase.LOAD_TESTING})
"""Phases that change nobody's route."""


class Controller:
    """Drives a rollout; the caller holds the lock.

    Args:
        rollouts: Where it is kept.
        tools: What it works with.
        record: A new rollout, or one whose controller died.
    """

    def __init__(self, rollouts: Rollouts, tools: ControllerContext, record: RolloutRecord) -> None:
        self._rollouts = rollouts
        self._tools = tools
        self._interruption: Interruption = tools.interruption()
        self._performer = ActionExecutor(tools, record, rollouts.files_of(record.id), self._interruption)
        self._record = record
        self._before = record.elapsed_seconds
        self._began = tools.clock()
        self._observer: Observer | None = None

    def run(self) -> RolloutRecord:
        """Bring the rollout to its end, and return it.

        Raises:
            RolloutError: Its rollback or its draining failed; the next controller continues it.
        """
        try:
            with self._interruption.handle_signals():
                self._begin()
                while not self._record.state.final:
                    self._take(self._step())
        except (OSError, RecordStoreError) as error:  # a full disk, say: what cannot be written down must not go on
            raise self._unfinished_error(error) from error
        return self._record

    def _begin(self) -> None:
        state = self._record.state
        if not self._record.history:
            self._keep(self._now().with_state(state, self._rollouts.now()))
        else:
            self._take(
                self._execute_or_fail(resume_actions(state))
                if state.phase in WAITING_PHASES
                else self._execute_required(resume_actions(state))
            )

    def _step(self) -> Event | None:
        """Do what the present phase asks for, and return what came of it."""
        state = self._record.state
        done = Done(state.phase, state.step)
        if state.phase not in WAITING_PHASES:
            return self._execute_required(actions(state)) or done
        return self._execute_or_fail(actions(state)) or self._analyze() or done

    def _execute_required(self, asked: tuple[RolloutAction, ...]) -> Event | None:
        """Do things that have to be done; return what an operator asks for instead (never during a rollback)."""
        for action in asked:
            if wish := self._pending_command():
                return wish
            self._performer.execute_with_retries(action)
        return self._pending_command()  # a rollback that was asked for during the last action must not be lost

    def _execute_or_fail(self, asked: tuple[RolloutAction, ...]) -> Event | None:
        """Do things that may fail because the candidate is no good; return what stands in the way."""
        phase = self._record.state.phase
        try:
            for action in asked:
                if wish := self._pending_command():
                    return wish
                if not isinstance(action, AnalyzeStep):
                    self._performer.execute_once(action)
        except Interrupted:
            return Abort(self._interruption.reason)
        except ShortlistError as error:
            return Failed(f"{phase.value}: {error}")
        except Exception as error:  # ours, or a library's: users come first, the traceback is kept
            self._log_traceback()
            return Failed(f"{phase.value}: {type(error).__name__}: {error} (traceback in {self._fault_file})")
        return None

    def _analyze(self) -> Event | None:
        """Return the decision of the canary analysis when there is something to watch."""
        state = self._record.state
        if state.phase is not Phase.WATCHING:
            return None
        moment = self._now()
        try:
            if moment.steps[-1].last is not None:
                with self._interruption.interruptible():
                    self._tools.sleep(self._tools.poll_seconds)
                moment = self._now()
            seen = self._open_observer().observe_step(state.step, moment.at_step_seconds)
        except Interrupted:
            return Abort(self._interruption.reason)
        except Exception as error:  # who sees nothing cannot know that users are well
            self._log_traceback()
            return Failed(f"{state.phase.value}: the canary analysis failed: {type(error).__name__}: {error}")
        self._record = moment.with_observation(seen)
        return StepAnalyzed(state.step, seen.decision, seen.reason)

    def _pending_command(self) -> Event | None:
        """Return what somebody outside wants, if it would still change anything."""
        order = self._rollouts.ordered(self._record.id)
        heard = Abort(self._interruption.reason) if self._interruption.reason else order.event if order else None
        return heard if heard and advance(self._record.state, heard)[0] != self._record.state else None

    def _take(self, event: Event | None) -> None:
        """Go where an event leads, and write it down."""
        record = self._now()
        if event is not None:
            record = record.with_state(advance(record.state, event)[0], self._rollouts.now())
        if record.state.final:
            record = self._concluded(record)
        self._keep(record)

    def _concluded(self, record: RolloutRecord) -> RolloutRecord:
        """Write all that is said about a rollout that is over; its state comes last, so that none ends without."""
        try:
            record = record.model_copy(update={"requests": self._open_observer().total()})
        except Exception:  # the counts are missing then, the verdict is not
            self._log_traceback()
        self._rollouts.conclude(record.id, verdict_of(record))
        try:
            self._rollouts.write_page(record)
        except Exception:
            self._log_traceback()
        self._rollouts.remove_files(record.id)
        return record

    def _keep(self, record: RolloutRecord) -> None:
        self._record = record
        self._rollouts.save(record)
        try:
            self._tools.on_change(record)
        except Exception:  # a closed terminal ends no rollout
            self._log_traceback()

    def _unfinished_error(self, error: OSError | RecordStoreError) -> RolloutError:
        state = self._record.state
        there = "nobody's route was changed"
        # A rollback that could not be recorded has not begun.
        leaving = state.phase in WAITING_PHASES | REVERTING_PHASES and state.reached not in _UNTOUCHED
        if state.former is not None and leaving:
            if state.reached is Phase.DRAINING:  # its servers may be stopped already; else users go first
                self._performer.execute_with_retries(StartServers(state.former))
            self._performer.execute_with_retries(RouteAllTraffic(state.former))
            there = f"everybody was sent back to version {state.former}"
        return RolloutError(
            f"{self._rollouts.where(self._record.id)}: cannot be written ({error}); {there}."
            " Fix that; then make deploy-canary resumes the rollout, or make rollback ends it."
        )

    def _now(self) -> RolloutRecord:
        return self._record.at(self._before + self._tools.clock() - self._began)

    def _open_observer(self) -> Observer:
        if self._observer is None:
            self._observer = self._tools.observe(self._record)
        return self._observer

    def _log_traceback(self) -> None:
        with suppress(OSError):  # a full disk is no reason to leave users where they are
            self._rollouts.note_fault(self._record.id, traceback.format_exc())

    @property
    def _fault_file(self) -> Path:
        return self._rollouts.folder_of(self._record.id) / FAULTS
