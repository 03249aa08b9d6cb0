"""The book of a spec's monitoring: its windows, decisions and retrainings, each a file that many processes share.

Below `<runs>/monitoring/<spec>`:

- `windows/20260119T000000Z.json`: a `WindowReport`
- `decisions/<key>.json`: a `RetrainDecision`
- `retrainings/<key>.json`: a `Retraining`
- `owners/<key>.json`: the process that answers for these two
- `looked`: empty, as old as the last look
- `outbox/`: alerts, see `monitoring.outbox`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from filelock import FileLock

from monitoring import record_files
from monitoring.owner import TO_START, Owners
from monitoring.record_files import RecordError
from monitoring.records import RetrainDecision, Retraining, WindowReport

Ending = Literal["promoted", "not_promoted", "held", "failed"]


class Book:
    """What is known and was done.

    Args:
        folder: `<runs>/monitoring/<spec>`; it is made when something is written.
        clock: Tells the time; only ages are computed from it.
    """

    def __init__(self, folder: Path, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.folder = folder
        self._clock = clock
        self._owners = Owners(folder / "owners")

    @property
    def spec(self) -> str:
        """Name of the spec."""
        return self.folder.name

    @property
    def outbox(self) -> Path:
        """Folder of its alerts."""
        return self.folder / "outbox"

    def reports(self, newest: int | None = None) -> tuple[WindowReport, ...]:
        """Return the windows' reports, oldest first; only so many newest ones where a number is given."""
        paths = sorted((self.folder / "windows").glob("*.json"))
        return tuple(map(self._report, paths if newest is None else paths[max(0, len(paths) - newest) :]))

    def add_report(self, report: WindowReport, replace: bool = False) -> bool:
        """Keep a window's report; return whether it was written.

        A window is reported once: the first report stays, unless `replace` says that the window is looked at anew.
        """
        path = self.folder / "windows" / f"{_stamp(report.start)}.json"
        if not replace:
            return record_files.create(path, report)
        with self._alone():
            record_files.replace(path, report)
        return True

    def decisions(self) -> tuple[RetrainDecision, ...]:
        """Return what was decided, oldest first."""
        found = map(self._decision, (self.folder / "decisions").glob("*.json"))
        return tuple(sorted(found, key=lambda one: (one.made, one.key)))

    def claim(self, decision: RetrainDecision) -> bool:
        """Write a decision down; return True for exactly one of all that come to the same one.

        Who gets True acts on it; a retraining begins with `start`, at once. A claimed retraining that never began,
        because its process died or took longer than ten minutes, can be claimed again. Of a hold or a page the newest
        wording is kept.
        """
        path = self._path("decisions", decision.key)
        with self._alone():
            won = record_files.create(path, decision)
            if not won and (decision.action != "retrain" or self._is_unstarted(decision.key)):
                record_files.replace(path, decision)
                won = decision.action == "retrain"
            if won:
                self._owners.take(decision.key, self._clock())
            return won

    def retrainings(self) -> tuple[Retraining, ...]:
        """Return what was started, oldest first."""
        found = map(self._retraining, (self.folder / "retrainings").glob("*.json"))
        return tuple(sorted(found, key=lambda one: (one.started, one.key)))

    def start(self, decision: RetrainDecision, run: str) -> bool:
        """Note that this process begins a retraining; return True for exactly one of all that try.

        Whoever gets False must not go on: somebody else took the decision over.
        """
        assert decision.action == "retrain", decision.action
        begun = Retraining(key=decision.key, started=self._clock(), window=decision.window, state="running", run=run)
        with self._alone():
            won = record_files.create(self._path("retrainings", decision.key), begun)
            if won:
                self._owners.take(decision.key, self._clock())
            return won

    def finish(self, key: str, state: Ending, version: int | None = None, reason: str = "") -> Retraining:
        """Note how a retraining ended, and return it. Who was given up as dead and comes back is right."""
        with self._alone():
            path = self._path("retrainings", key)
            before = self._retraining(path)
            assert before.state in {"running", "failed"}, f"{key} ended before: {before.state}"
            ended = before.model_copy(update={"state": state, "version": version, "reason": reason})
            record_files.replace(path, ended)
            return ended

    def give_up(self, key: str, reason: str) -> None:
        """Note that a retraining failed, if it is still under way; one that had ended stays as it was."""
        with self._alone():
            path = self._path("retrainings", key)
            if path.exists() and (before := self._retraining(path)).state == "running":
                record_files.replace(path, before.model_copy(update={"state": "failed", "reason": reason}))

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
            dead = [
                one.model_copy(update={"state": "failed", "reason": why})
                for one in self.retrainings()
                if one.state == "running" and (why := self._why_lost(one))
            ]
            for one in dead:
                record_files.replace(self._path("retrainings", one.key), one)
        return tuple(dead)

    def looked(self) -> None:
        """Note that somebody looked now, whether there was a new window or not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "looked").touch()

    def last_look(self) -> datetime | None:
        """Return when somebody looked last; None when nobody ever did."""
        path = self.folder / "looked"
        return _written(path) if path.exists() else None

    def _is_unstarted(self, key: str) -> bool:
        if self._path("retrainings", key).exists():
            return False
        owner = self._owners.of(key)
        if owner is None:
            return self._clock() - _written(self._path("decisions", key)) > TO_START
        return owner.is_overdue(self._clock())

    def _why_lost(self, running: Retraining) -> str:
        owner = self._owners.of(running.key)
        if owner is None:
            overdue = self._clock() - running.started > TO_START
            return "the process that ran it died as soon as it began" if overdue else ""
        return owner.why_lost(self._clock())

    def _report(self, path: Path) -> WindowReport:
        report = record_files.read(path, WindowReport, "a window's report", derived=("verdict",))
        return _named(report, _stamp(report.start), path)

    def _decision(self, path: Path) -> RetrainDecision:
        decision = record_files.read(path, RetrainDecision, "a decision")
        return _named(decision, decision.key, path)

    def _retraining(self, path: Path) -> Retraining:
        retraining = record_files.read(path, Retraining, "a retraining")
        return _named(retraining, retraining.key, path)

    def _path(self, kind: str, key: str) -> Path:
        assert re.fullmatch(r"[0-9a-f]{16}", key), f"not a decision's key: {key!r}"
        return self.folder / kind / f"{key}.json"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".lock"):  # the system frees it when its process dies
            yield


def book_of(stores: str, name: str) -> Book:
    """Return the book of a spec.

    Args:
        stores: Where MLflow and Feast keep theirs, as the graph's parameters say it: a folder, perhaps `#` and more.
        name: Of the spec.
    """
    return Book(Path(stores.partition("#")[0]).parent / "monitoring" / name)


def _written(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _stamp(moment: datetime) -> str:
    assert moment.tzinfo is not None, "a moment without a timezone is another one on every machine"
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def _named(record: record_files.Kind, name: str, path: Path) -> record_files.Kind:
    if path.stem == name:
        return record
    raise RecordError(
        f"{path}: holds what belongs into {name}.json. It was copied or renamed; move it away and look again."
    )
