"""The monitoring store of a spec: records of its windows, decisions and retrainings, shared by many processes.

Files below `<runs>/monitoring/<spec>`, or rows of PostgreSQL:

- `windows/<start>.json`: a `WindowReport`
- `decisions/<key>.json`: a `RetrainDecision`
- `retrainings/<key>.json`: a `Retraining`
- `owners/<key>.json`: the process that claimed the decision
- `last_run`: empty; its time of writing is the end of the last monitoring run
- `served_features.json`: the newest `ServedFeatures`
- `alerts/<name>.json`: an `AlertRecord`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Literal

from monitoring.served_features.record import ServedFeaturesReport
from monitoring.store import record_files
from monitoring.store.process_identity import START_TIMEOUT, ProcessIdentity, WorkClaims
from monitoring.store.record_files import RecordError
from monitoring.windows.records import RetrainDecision, Retraining, WindowReport
from shortlist.contracts import Files
from shortlist.storage.records.folder import FolderRecordStore
from shortlist.storage.records.opening import open_record_store
from shortlist.storage.records.store import RecordStore
from shortlist.storage.storage_config import StorageConfig
from shortlist.tracking.pipeline_run import pipeline_name

RetrainingState = Literal["promoted", "not_promoted", "held", "failed"]


class MonitoringStore:
    """The reports, decisions and retrainings of a spec.

    Args:
        folder: `<runs>/monitoring/<spec>`, also for pages; it is created by the first write.
        clock: Returns the present moment; only ages are computed from it.
        state: The record store; files in the folder by default.
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
        """The record store, for users with records of their own."""
        return self._state

    def reports(self, newest: int | None = None) -> tuple[WindowReport, ...]:
        """Return the reports of windows, oldest first; only the `newest` ones where a number is given."""
        if newest is None:
            return tuple(self._parse_report(name, text) for name, text in self._texts("windows"))
        names = [name for name in self._state.names("windows/") if _is_record(name, "windows")]
        texts = ((name, self._state.read(name)) for name in names[max(0, len(names) - newest) :])
        return tuple(self._parse_report(name, text) for name, text in texts if text is not None)

    def add_report(self, report: WindowReport, replace: bool = False) -> bool:
        """Write a window's report; return whether it was written.

        The first report of a window stays, unless `replace` is true because the window was evaluated again.
        """
        name = f"windows/{_timestamp(report.start)}.json"
        if not replace:
            return record_files.create(self._state, name, report)
        with self._lock():
            record_files.replace(self._state, name, report)
        return True

    def decisions(self) -> tuple[RetrainDecision, ...]:
        """Return all decisions, oldest first."""
        decisions = (self._parse_decision(name, text) for name, text in self._texts("decisions"))
        return tuple(sorted(decisions, key=lambda decision: (decision.made, decision.key)))

    def claim(self, decision: RetrainDecision) -> bool:
        """Write a decision; return True for exactly one of the processes that make the same one.

        The process that gets True acts on it, and starts a retraining with `start` at once. A claimed retraining that
        never started, because its process died or took longer than ten minutes, can be claimed again. The record of a
        hold or a page is replaced by the newest one.
        """
        name = _record_name("decisions", decision.key)
        with self._lock():
            is_claimed = record_files.create(self._state, name, decision)
            if not is_claimed and (decision.action != "retrain" or self._is_unstarted(decision.key)):
                record_files.replace(self._state, name, decision)
                is_claimed = decision.action == "retrain"
            if is_claimed:
                self._owners.take(decision.key, self._clock())
            return is_claimed

    def retrainings(self) -> tuple[Retraining, ...]:
        """Return all retrainings, oldest first."""
        retrainings = (self._parse_retraining(name, text) for name, text in self._texts("retrainings"))
        return tuple(sorted(retrainings, key=lambda retraining: (retraining.started, retraining.key)))

    def start(self, decision: RetrainDecision, run: str, *, alone: bool = False) -> bool:
        """Record that this process starts a retraining; return True for exactly one of the processes that try.

        A process that gets False must stop: another one has taken over the decision.

        Args:
            decision: The decision to retrain.
            run: Folder or name of the run.
            alone: Whether it may start only while no other retraining is running; checked and recorded atomically.
        """
        assert decision.action == "retrain", decision.action
        retraining = Retraining(
            key=decision.key, started=self._clock(), window=decision.window, state="running", run=run,
            trigger=decision.trigger,
        )  # fmt: skip
        with self._lock():
            if alone and any(active.state == "running" for active in self.retrainings()):
                return False
            is_started = record_files.create(self._state, _record_name("retrainings", decision.key), retraining)
            if is_started:
                self._owners.take(decision.key, self._clock())
            return is_started

    def finish(self, key: str, state: RetrainingState, version: int | None = None, reason: str = "") -> Retraining:
        """Record the end of a retraining, and return it; one that was given up as failed may still end otherwise."""
        with self._lock():
            retraining = self._read_retraining(key)
            assert retraining is not None, f"{key} never began"
            assert retraining.state in {"running", "failed"}, f"{key} ended before: {retraining.state}"
            run = retraining.run or pipeline_name()  # a scheduled training on one machine starts before its run
            ended = retraining.model_copy(update={"state": state, "version": version, "reason": reason, "run": run})
            record_files.replace(self._state, _record_name("retrainings", key), ended)
            return ended

    def mark_failed(self, key: str, reason: str) -> None:
        """Record that a retraining failed, if it is still running; one that has ended stays as it is."""
        with self._lock():
            retraining = self._read_retraining(key)
            if retraining is not None and retraining.state == "running":
                self._fail(retraining.model_copy(update={"run": retraining.run or pipeline_name()}), reason)

    def release(self, key: str) -> None:
        """Release a claimed retraining that could not start, so that the next monitoring run may claim it at once."""
        with self._lock():
            if self._read_retraining(key) is None:
                self._state.remove(_record_name("decisions", key))

    def unfinished(self) -> tuple[RetrainDecision, ...]:
        """Return the retrainings that were claimed, never started and may be claimed again; a later window's wins."""
        newest_window = {
            decision.trigger: decision.window
            for decision in sorted(self.decisions(), key=lambda decision: decision.window)
        }
        return tuple(
            decision
            for decision in self.decisions()
            if decision.action == "retrain"
            and decision.window == newest_window[decision.trigger]
            and self._is_unstarted(decision.key)
        )

    def recover(self) -> tuple[Retraining, ...]:
        """Mark the running retrainings whose process died as failed, and return them."""
        with self._lock():
            running = [retraining for retraining in self.retrainings() if retraining.state == "running"]
            return tuple(
                self._fail(retraining, reason) for retraining in running if (reason := self._lost_reason(retraining))
            )

    def record_run_time(self) -> None:
        """Record that a monitoring run ends now, with or without a new window."""
        self._state.replace("last_run", "")

    def last_run_time(self) -> datetime | None:
        """Return when the last monitoring run ended; None before the first."""
        return self._state.written("last_run")

    def set_served_features(self, comparison: ServedFeaturesReport) -> None:
        """Write the newest comparison of served feature values with the feature table's."""
        with self._lock():
            record_files.replace(self._state, Files.SERVED_FEATURES, comparison)

    def served_features(self) -> ServedFeaturesReport | None:
        """Return the newest comparison; None when none was made."""
        return record_files.read(
            self._state, Files.SERVED_FEATURES, ServedFeaturesReport, "a comparison of served features"
        )

    def is_claimed_by_this_run(self, key: str) -> bool:
        """Return whether this process, or another step of the same run, has claimed a decision."""
        owner = self._owners.owner(key)
        return owner is not None and owner.is_same_run(ProcessIdentity.this_process(self._clock()))

    def _is_unstarted(self, key: str) -> bool:
        if self._read_retraining(key) is not None:
            return False
        owner = self._owners.owner(key)
        if owner is None:
            written_at = self._state.written(_record_name("decisions", key))
            return written_at is not None and self._clock() - written_at > START_TIMEOUT
        return owner.is_claim_expired(self._clock())

    def _lost_reason(self, running: Retraining) -> str:
        owner = self._owners.owner(running.key)
        if owner is None:
            is_overdue = self._clock() - running.started > START_TIMEOUT
            return "the process that ran it died as soon as it began" if is_overdue else ""
        return owner.lost_reason(self._clock())

    def _texts(self, kind: str) -> Iterator[tuple[str, str]]:
        return ((name, text) for name, text in self._state.texts(f"{kind}/").items() if _is_record(name, kind))

    def _parse_report(self, name: str, text: str) -> WindowReport:
        location = self._state.where(name)
        report = record_files.parse(text, location, WindowReport, "a window's report", derived=("verdict",))
        return _check_name(report, _timestamp(report.start), location)

    def _parse_decision(self, name: str, text: str) -> RetrainDecision:
        location = self._state.where(name)
        decision = record_files.parse(text, location, RetrainDecision, "a decision")
        return _check_name(decision, decision.key, location)

    def _parse_retraining(self, name: str, text: str) -> Retraining:
        location = self._state.where(name)
        retraining = record_files.parse(text, location, Retraining, "a retraining")
        return _check_name(retraining, retraining.key, location)

    def _read_retraining(self, key: str) -> Retraining | None:
        name = _record_name("retrainings", key)
        text = self._state.read(name)
        return None if text is None else self._parse_retraining(name, text)

    def _fail(self, running: Retraining, reason: str) -> Retraining:
        failed = running.model_copy(update={"state": "failed", "reason": reason})
        record_files.replace(self._state, _record_name("retrainings", running.key), failed)
        return failed

    def _lock(self) -> AbstractContextManager[None]:
        return self._state.lock("book")  # released by the system, or the server, when the process dies


def open_monitoring_store(stores: str, name: str) -> MonitoringStore:
    """Return the monitoring store of a spec.

    Args:
        stores: The stores of MLflow and Feast, as the graph's `stores` parameter.
        name: Name of the spec.

    Raises:
        ShortlistError: The stores keep no records.
    """
    storage = StorageConfig.parse(stores)
    # Without a shared disk, the pages in this folder are local; the process that draws them publishes them.
    return MonitoringStore(storage.runs / "monitoring" / name, state=open_record_store(storage, "monitoring", name))


def _record_name(kind: str, key: str) -> str:
    assert re.fullmatch(r"[0-9a-f]{16}", key), f"not a decision's key: {key!r}"
    return f"{kind}/{key}.json"


def _is_record(name: str, kind: str) -> bool:
    return name.endswith(".json") and name.count("/") == 1 and name.startswith(f"{kind}/")


def _timestamp(moment: datetime) -> str:
    assert moment.tzinfo is not None, "a moment without a timezone is another one on every machine"
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def _check_name(record: record_files.Kind, name: str, location: str) -> record_files.Kind:
    if PurePosixPath(location).stem == name:
        return record
    raise RecordError(
        f"{location}: holds the record {name}.json. It was copied or renamed; move it away, and the next monitoring run"
        " goes on."
    )
