"""The monitoring store of a spec: its windows, decisions and retrainings, each a record that many processes share.

Files below `<runs>/monitoring/<spec>`, or rows of PostgreSQL:

- `windows/20260119T000000Z.json`: a `WindowReport`
- `decisions/<key>.json`: a `RetrainDecision`
- `retrainings/<key>.json`: a `Retraining`
- `owners/<key>.json`: the process that answers for these two
- `last_run`: empty, as old as the last monitoring run
- `served_features.json`: the newest `ServedFeatures`
- `outbox/`: alerts, see `monitoring.alerts.alert_queue`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Literal

from monitoring.served_features.record import ServedFeatures
from monitoring.store import record_files
from monitoring.store.process_identity import START_TIMEOUT, ProcessIdentity, WorkClaims
from monitoring.store.record_files import RecordError
from monitoring.windows.records import RetrainDecision, Retraining, WindowReport
from shortlist.contracts import Files
from shortlist.storage.records.folder import FolderRecordStore
from shortlist.storage.records.opening import open_record_store
from shortlist.storage.records.store import RecordStore
from shortlist.storage.storage_config import StorageConfig

RetrainingState = Literal["promoted", "not_promoted", "held", "failed"]


class MonitoringStore:
    """What is known and was done.

    Args:
        folder: `<runs>/monitoring/<spec>`, for pages and the like; it is made when something is written.
        clock: Tells the time; only ages are computed from it.
        state: Where the records are; files in the folder by default.
    """

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        state: RecordStore | None = None,
    ) -> None:
        self.folder = folder
        self._state = FolderRecordStore(folder) if state is None else state
        self._clock = clock
        self._owners = WorkClaims(self._state)

    @property
    def spec(self) -> str:
        """Name of the spec."""
        return self.folder.name

    @property
    def records(self) -> RecordStore:
        """The records themselves, for those who keep their own among them."""
        return self._state

    def reports(self, newest: int | None = None) -> tuple[WindowReport, ...]:
        """Return the windows' reports, oldest first; only so many newest ones where a number is given."""
        if newest is None:
            return tuple(self._reported(name, text) for name, text in self._texts("windows"))
        names = [name for name in self._state.names("windows/") if _is_record(name, "windows")]
        found = ((name, self._state.read(name)) for name in names[max(0, len(names) - newest) :])
        return tuple(self._reported(name, text) for name, text in found if text is not None)

    def add_report(self, report: WindowReport, replace: bool = False) -> bool:
        """Keep a window's report; return whether it was written.

        A window is reported once: the first report stays, unless `replace` says that the window is evaluated again.
        """
        name = f"windows/{_stamp(report.start)}.json"
        if not replace:
            return record_files.create(self._state, name, report)
        with self._alone():
            record_files.replace(self._state, name, report)
        return True

    def decisions(self) -> tuple[RetrainDecision, ...]:
        """Return what was decided, oldest first."""
        found = (self._decided(name, text) for name, text in self._texts("decisions"))
        return tuple(sorted(found, key=lambda one: (one.made, one.key)))

    def claim(self, decision: RetrainDecision) -> bool:
        """Write a decision down; return True for exactly one of all that come to the same one.

        Who gets True acts on it; a retraining begins with `start`, at once. A claimed retraining that never began,
        because its process died or took longer than ten minutes, can be claimed again. Of a hold or a page the newest
        wording is kept.
        """
        name = _name("decisions", decision.key)
        with self._alone():
            won = record_files.create(self._state, name, decision)
            if not won and (decision.action != "retrain" or self._is_unstarted(decision.key)):
                record_files.replace(self._state, name, decision)
                won = decision.action == "retrain"
            if won:
                self._owners.take(decision.key, self._clock())
            return won

    def retrainings(self) -> tuple[Retraining, ...]:
        """Return what was started, oldest first."""
        found = (self._retrained(name, text) for name, text in self._texts("retrainings"))
        return tuple(sorted(found, key=lambda one: (one.started, one.key)))

    def start(self, decision: RetrainDecision, run: str, *, alone: bool = False) -> bool:
        """Note that this process begins a retraining; return True for exactly one of all that try.

        Whoever gets False must not go on: somebody else took the decision over.

        Args:
            decision: What it carries out.
            run: Its folder or name.
            alone: Whether it may begin only while no other retraining is running; asked and noted at once.
        """
        assert decision.action == "retrain", decision.action
        begun = Retraining(key=decision.key, started=self._clock(), window=decision.window, state="running", run=run)
        with self._alone():
            if alone and any(one.state == "running" for one in self.retrainings()):
                return False
            won = record_files.create(self._state, _name("retrainings", decision.key), begun)
            if won:
                self._owners.take(decision.key, self._clock())
            return won

    def finish(self, key: str, state: RetrainingState, version: int | None = None, reason: str = "") -> Retraining:
        """Note how a retraining ended, and return it. Who was given up as dead and comes back is right."""
        with self._alone():
            before = self._retraining(key)
            assert before is not None, f"{key} never began"
            assert before.state in {"running", "failed"}, f"{key} ended before: {before.state}"
            ended = before.model_copy(update={"state": state, "version": version, "reason": reason})
            record_files.replace(self._state, _name("retrainings", key), ended)
            return ended

    def mark_failed(self, key: str, reason: str) -> None:
        """Note that a retraining failed, if it is still under way; one that had ended stays as it was."""
        with self._alone():
            before = self._retraining(key)
            if before is not None and before.state == "running":
                self._fail(before, reason)

    def release(self, key: str) -> None:
        """Give back a claimed retraining that could not begin: the next monitoring run may claim it at once."""
        with self._alone():
            if self._retraining(key) is None:
                self._state.remove(_name("decisions", key))

    def unfinished(self) -> tuple[RetrainDecision, ...]:
        """Return the claimed retrainings that never began and may be claimed again; a later window's replaces one."""
        newest = {one.trigger: one.window for one in sorted(self.decisions(), key=lambda one: one.window)}
        return tuple(
            one
            for one in self.decisions()
            if one.action == "retrain" and one.window == newest[one.trigger] and self._is_unstarted(one.key)
        )

    def recover(self) -> tuple[Retraining, ...]:
        """Mark the retrainings whose process died as failed, and return them: nothing waits for the dead."""
        with self._alone():
            running = [one for one in self.retrainings() if one.state == "running"]
            return tuple(self._fail(one, why) for one in running if (why := self._why_lost(one)))

    def record_run_time(self) -> None:
        """Record that a monitoring run ends now, whether there was a new window or not."""
        self._state.replace("last_run", "")

    def last_run_time(self) -> datetime | None:
        """Return when the last monitoring run ended; None before the first."""
        return self._state.written("last_run")

    def set_served_features(self, found: ServedFeatures) -> None:
        """Keep the newest comparison of served feature values with the feature table's."""
        with self._alone():
            record_files.replace(self._state, Files.SERVED_FEATURES, found)

    def served_features(self) -> ServedFeatures | None:
        """Return the newest comparison; None when none was made."""
        return record_files.read(self._state, Files.SERVED_FEATURES, ServedFeatures, "a comparison of served features")

    def is_own(self, key: str) -> bool:
        """Whether this process, or another step of the same run, has claimed a decision."""
        owner = self._owners.of(key)
        return owner is not None and owner.is_same_run(ProcessIdentity.this_process(self._clock()))

    def _is_unstarted(self, key: str) -> bool:
        if self._retraining(key) is not None:
            return False
        owner = self._owners.of(key)
        if owner is None:
            written = self._state.written(_name("decisions", key))
            return written is not None and self._clock() - written > START_TIMEOUT
        return owner.is_claim_expired(self._clock())

    def _why_lost(self, running: Retraining) -> str:
        owner = self._owners.of(running.key)
        if owner is None:
            overdue = self._clock() - running.started > START_TIMEOUT
            return "the process that ran it died as soon as it began" if overdue else ""
        return owner.lost_reason(self._clock())

    def _texts(self, kind: str) -> Iterator[tuple[str, str]]:
        return ((name, text) for name, text in self._state.texts(f"{kind}/").items() if _is_record(name, kind))

    def _reported(self, name: str, text: str) -> WindowReport:
        where = self._state.where(name)
        report = record_files.parsed(text, where, WindowReport, "a window's report", derived=("verdict",))
        return _named(report, _stamp(report.start), where)

    def _decided(self, name: str, text: str) -> RetrainDecision:
        where = self._state.where(name)
        decision = record_files.parsed(text, where, RetrainDecision, "a decision")
        return _named(decision, decision.key, where)

    def _retrained(self, name: str, text: str) -> Retraining:
        where = self._state.where(name)
        retraining = record_files.parsed(text, where, Retraining, "a retraining")
        return _named(retraining, retraining.key, where)

    def _retraining(self, key: str) -> Retraining | None:
        name = _name("retrainings", key)
        text = self._state.read(name)
        return None if text is None else self._retrained(name, text)

    def _fail(self, running: Retraining, reason: str) -> Retraining:
        failed = running.model_copy(update={"state": "failed", "reason": reason})
        record_files.replace(self._state, _name("retrainings", running.key), failed)
        return failed

    def _alone(self) -> AbstractContextManager[None]:
        return self._state.lock("book")  # freed by the system, or the server, when its process dies


def open_monitoring_store(stores: str, name: str) -> MonitoringStore:
    """Return the monitoring store of a spec.

    Args:
        stores: Where MLflow and Feast keep theirs, as the graph's `stores` parameter says it.
        name: Of the spec.

    Raises:
        ShortlistError: The stores keep no records.
    """
    known = StorageConfig.parse(stores)
    # Where no disk is shared, pages live as long as this machine; whoever draws them publishes them.
    return MonitoringStore(known.runs / "monitoring" / name, state=open_record_store(known, "monitoring", name))


def _name(kind: str, key: str) -> str:
    assert re.fullmatch(r"[0-9a-f]{16}", key), f"not a decision's key: {key!r}"
    return f"{kind}/{key}.json"


def _is_record(name: str, kind: str) -> bool:
    return name.endswith(".json") and name.count("/") == 1 and name.startswith(f"{kind}/")


def _stamp(moment: datetime) -> str:
    assert moment.tzinfo is not None, "a moment without a timezone is another one on every machine"
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def _named(record: record_files.Kind, name: str, where: str) -> record_files.Kind:
    if PurePosixPath(where).stem == name:
        return record
    raise RecordError(
        f"{where}: holds what belongs into {name}.json. It was copied or renamed; move it away and run make watch"
        " again."
    )
