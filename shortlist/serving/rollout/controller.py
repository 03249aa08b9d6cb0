"""Driving one rollout to its end: every step is written down before and after it is taken."""

from __future__ import annotations

import shutil
import traceback
from contextlib import suppress
from typing import Final

from shortlist.artefacts import write_text
from shortlist.contracts import ShortlistError
from shortlist.serving.rollout.actions import Action, SendAll, Watch, actions, resumed
from shortlist.serving.rollout.events import Abort, Done, Event, Failed, Judged
from shortlist.serving.rollout.fleet import Observer
from shortlist.serving.rollout.interruption import Interrupted, Interruption
from shortlist.serving.rollout.machine import advance
from shortlist.serving.rollout.page import PAGE, write_page
from shortlist.serving.rollout.performer import Performer
from shortlist.serving.rollout.phases import WAITING, Phase
from shortlist.serving.rollout.record import RolloutRecord
from shortlist.serving.rollout.rollouts import RolloutError, Rollouts
from shortlist.serving.rollout.tools import Tools
from shortlist.serving.rollout.verdict import verdict_of
from shortlist.state.store import StateError

FAULTS: Final = "faults.log"
"""Tracebacks of what should not have happened, beside the rollout's state."""


class Controller:
    """Drives a rollout; the caller holds the lock.

    Args:
        rollouts: Where it is kept.
        tools: What it works with.
        record: A new rollout, or one whose controller died.
    """

    def __init__(self, rollouts: Rollouts, tools: Tools, record: RolloutRecord) -> None:
        self._rollouts = rollouts
        self._tools = tools
        self._folder = rollouts.folder_of(record.id)
        self._interruption = Interruption()
        self._performer = Performer(tools, record, self._folder / "files", self._interruption)
        self._record = record
        self._before = record.elapsed_seconds
        self._began = tools.clock()
        self._observer: Observer | None = None

    def run(self) -> RolloutRecord:
        """Bring the rollout to its end, and return it.

        Raises:
            RolloutError: Its way back or its draining failed; it stays unfinished, and the next controller goes on.
        """
        try:
            with self._interruption.heeded():
                self._begin()
                while not self._record.state.final:
                    self._take(self._step())
        except (OSError, StateError) as error:  # a full disk, say: what cannot be written down must not go on
            raise self._stranded(error) from error
        return self._record

    def _begin(self) -> None:
        state = self._record.state
        if not self._record.history:
            self._keep(self._now().entered(state))
        else:
            self._take(self._attempt(resumed(state)) if state.phase in WAITING else self._surely(resumed(state)))

    def _step(self) -> Event | None:
        """Do what the present phase asks for, and return what came of it."""
        state = self._record.state
        done = Done(state.phase, state.step)
        if state.phase not in WAITING:
            return self._surely(actions(state)) or done
        return self._attempt(actions(state)) or self._looked() or done

    def _surely(self, asked: tuple[Action, ...]) -> Event | None:
        """Do things that have to be done; return what somebody wants instead (never during a way back)."""
        for action in asked:
            if wish := self._wish():
                return wish
            self._performer.insistently(action)
        return None

    def _attempt(self, asked: tuple[Action, ...]) -> Event | None:
        """Do things that may fail because the candidate is no good; return what stands in the way."""
        phase = self._record.state.phase
        try:
            for action in asked:
                if wish := self._wish():
                    return wish
                if not isinstance(action, Watch):
                    self._performer.perform(action)
        except Interrupted:
            return Abort(self._interruption.reason)
        except ShortlistError as error:
            return Failed(f"{phase.value}: {error}")
        except Exception as error:  # ours, or a library's: users come first, the traceback is kept
            self._note_fault()
            return Failed(f"{phase.value}: {type(error).__name__}: {error} (traceback in {self._folder / FAULTS})")
        return None

    def _looked(self) -> Event | None:
        """Return the judge's word when there is something to watch."""
        state = self._record.state
        if state.phase is not Phase.WATCHING:
            return None
        moment = self._now()
        try:
            if moment.steps[-1].last is not None:
                with self._interruption.cut_short():
                    self._tools.sleep(self._tools.poll_seconds)
                moment = self._now()
            seen = self._eyes().look(state.step, moment.at_step_seconds)
        except Interrupted:
            return Abort(self._interruption.reason)
        except Exception as error:  # who sees nothing cannot know that users are well
            self._note_fault()
            return Failed(f"{state.phase.value}: the judge is blind: {type(error).__name__}: {error}")
        self._record = moment.saw(seen)
        return Judged(state.step, seen.decision, seen.reason)

    def _wish(self) -> Event | None:
        """Return what somebody outside wants, if it would still change anything."""
        order = self._rollouts.ordered(self._record.id)
        heard = Abort(self._interruption.reason) if self._interruption.reason else order.event if order else None
        return heard if heard and advance(self._record.state, heard)[0] != self._record.state else None

    def _take(self, event: Event | None) -> None:
        """Go where an event leads, and write it down."""
        record = self._now()
        if event is not None:
            record = record.entered(advance(record.state, event)[0])
        if record.state.final:
            record = self._concluded(record)
        self._keep(record)

    def _concluded(self, record: RolloutRecord) -> RolloutRecord:
        """Write all that is said about a rollout that is over; its state comes last, so that none ends without."""
        try:
            record = record.model_copy(update={"requests": self._eyes().total()})
        except Exception:  # the counts are missing then, the verdict is not
            self._note_fault()
        self._rollouts.conclude(record.id, verdict_of(record))
        try:
            write_page(record, self._folder / PAGE)
            self._rollouts.publish(record.id, PAGE)
        except Exception:
            self._note_fault()
        shutil.rmtree(self._folder / "files", ignore_errors=True)
        return record

    def _keep(self, record: RolloutRecord) -> None:
        self._record = record
        self._rollouts.save(record)
        try:
            self._tools.on_change(record)
        except Exception:  # a closed terminal ends no rollout
            self._note_fault()

    def _stranded(self, error: OSError | StateError) -> RolloutError:
        state = self._record.state
        there = "nobody's route was changed"
        if state.former is not None and state.phase in WAITING and state.percent:
            self._performer.insistently(SendAll(state.former))
            there = f"everybody was sent back to version {state.former}"
        return RolloutError(
            f"{self._rollouts.where(self._record.id)}: cannot be written ({error}); {there}."
            " Mend that, then make deploy-canary goes on, or make rollback ends it."
        )

    def _now(self) -> RolloutRecord:
        return self._record.at(self._before + self._tools.clock() - self._began)

    def _eyes(self) -> Observer:
        if self._observer is None:
            self._observer = self._tools.observe(self._record)
        return self._observer

    def _note_fault(self) -> None:
        path = self._folder / FAULTS
        earlier = path.read_text(encoding="utf-8") if path.exists() else ""
        path.parent.mkdir(parents=True, exist_ok=True)  # the controller that began it may have been elsewhere
        write_text(path, f"{earlier}{traceback.format_exc()}\n")
        with suppress(ShortlistError):  # the object store may be what is at fault
            self._rollouts.publish(self._record.id, FAULTS)
