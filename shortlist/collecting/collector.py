"""Collecting: what servers answered and users did since becomes numbered batches of rows, exactly once.

A batch holds whole parts of the prediction log whose outcomes are due, and says which. The next number is taken by one
atomic create, after everything else is in place: a collector that is killed anywhere has published its batch or not,
and of two collectors at once one publishes it. Whoever comes later goes on with the parts that no batch holds.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import polars as pl

from monitoring.windows.answered_requests import select_answered
from shortlist.collecting.live_labels import Labels, read_labels
from shortlist.collecting.live_log import MatureParts, covered_parts, live_folders, mature_parts
from shortlist.collecting.live_rows import LiveRows, span_of_times
from shortlist.contracts import Columns, DataError, ShortlistError
from shortlist.data.base_rows import clock_failures
from shortlist.data.collected import REQUESTS, ROWS, Batch, BatchCounts, CollectedLog
from shortlist.data.failures import flagged
from shortlist.data.rules import broken_checks, log_checks
from shortlist.features.hashing import codes_of
from shortlist.serving.log.log_reader import parts, read_parts
from shortlist.serving.log.logs import prediction_schema
from shortlist.serving.paths import ServingPaths
from shortlist.spec.data import Data
from shortlist.spec.durations import parse_duration
from shortlist.spec.serving import ReplayTraffic, Serving
from shortlist.storage.artefacts import sha256

_MOST_TRIES: Final = 50
"""Times that others may publish first."""
_RETRIED_WITHIN: Final = timedelta(days=1)
"""An answer of a request that was answered up to so long before is a repetition; later, the id was given anew."""
_FEW: Final = 20
"""Fewer outcomes say nothing about the whole log."""


@dataclass
class Collected:
    """What a collector did."""

    batches: list[Batch] = field(default_factory=list)
    """Those that it published."""
    waiting: int = 0
    """Parts of the prediction log whose outcomes are not due yet, or that cannot be read."""
    problems: list[str] = field(default_factory=list)
    """Parts that cannot be read, and why; nothing of them is lost."""

    @property
    def rows(self) -> int:
        """Rows that trainings may read from now on."""
        return sum(batch.counts.rows for batch in self.batches)

    @property
    def lines(self) -> tuple[str, ...]:
        """What to tell whoever started it."""
        said = [describe(batch) for batch in self.batches] or ["No row is new."]
        if self.waiting:
            said.append(f"{self.waiting} part(s) of the prediction log wait: their outcomes are not due yet.")
        return (*said, *self.problems)


class Collector:
    """Collects the live traffic of one spec.

    Args:
        name: Of the spec.
        stores: Where everything is kept, as the graphs' parameter says it.
        data: The spec's section.
        serving: Likewise.
        most_rows: Rows of a batch, about; it bounds the memory.
        log: The batches; by default those in the stores.
    """

    def __init__(
        self,
        name: str,
        stores: str,
        data: Data,
        serving: Serving,
        most_rows: int = 500_000,
        log: CollectedLog | None = None,
    ) -> None:
        if not data.live.collect:
            raise ShortlistError(
                f"spec '{name}' collects nothing; declare data.live.collect: true and data.outcome_delay"
            )
        self._name, self._stores, self._data, self._most_rows = name, stores, data, most_rows
        self._sampling = serving.log.sampling
        self._replayed = isinstance(serving.traffic, ReplayTraffic)
        self._log = log or CollectedLog.open(stores, name)

    def collect(self, now: datetime | None = None) -> Collected:
        """Publish batches until nothing more is due.

        Args:
            now: The present moment; the clock's by default.

        Raises:
            ShortlistError: A store is unavailable, the disk is full, the outcome log is missing or foreign: nothing
                of what is due then is collected, and the next collector finds it.
        """
        now = now or datetime.now(UTC)
        done, lost = Collected(), 0
        while lost < _MOST_TRIES:
            published = self._log.batches()
            folders = live_folders(self._stores, self._name, published)
            found = self._due(folders, published, now)
            done.waiting, done.problems = found.waiting, found.problems
            if not found.frames:
                return done
            with TemporaryDirectory(prefix="shortlist-collect-") as scratch:
                batch = self._made(found, folders, published, Path(scratch), now)
                if self._log.publish(batch, Path(scratch)):
                    done.batches.append(batch)
                else:  # another collector was first; what is left is looked at anew
                    lost += 1
        raise ShortlistError(f"spec '{self._name}': other collectors published {lost} batches meanwhile; run again")

    def _due(self, folders: ServingPaths, published: Sequence[Batch], now: datetime) -> MatureParts:
        assert self._data.live_outcome_delay is not None
        due = now - parse_duration(self._data.live_outcome_delay) - parse_duration(self._data.live.settle)
        return mature_parts(folders.predictions, self._data, covered_parts(published), due, self._most_rows)

    def _made(
        self, found: MatureParts, folders: ServingPaths, published: Sequence[Batch], out: Path, now: datetime
    ) -> Batch:
        requests, repeated = self._requests(found, published)
        rows, labels, every = LiveRows(self._data, self._sampling), None, pl.DataFrame()
        if requests.height:
            labels = read_labels(folders.outcomes, requests, self._data)
            self._check_outcomes(labels, requests, folders)
            every = _sorted(rows.rows(requests, labels))
        good = self._good(every)
        every.write_parquet(out / ROWS)
        (out / REQUESTS).mkdir()
        _fingerprints(requests).to_frame().write_parquet(out / REQUESTS / f"{REQUESTS}.parquet")
        number = len(published) + 1
        first, last = span_of_times(good[Columns.TIME]) if good.height else (None, None)
        answered_from, answered_to = span_of_times(requests["time"])
        return Batch(
            number=number, spec=self._name, made=now, folder=self._log.folder_of(number, secrets.token_hex(6)),
            digest=sha256(out / ROWS), spans=tuple(found.spans), answered_from=answered_from, answered_to=answered_to,
            first=first, last=last,
            counts=BatchCounts(
                requests=requests.height, rows=good.height,
                positives=int((good[Columns.LABEL] == 1).sum()) if good.height else 0,
                quarantined=every.height - good.height,
                without_outcome=rows.without_outcome, repeated_requests=repeated, before_since=rows.before_since,
                late_outcomes=labels.late if labels else 0, early_outcomes=labels.early if labels else 0,
                repeated_outcomes=labels.repeated if labels else 0, foreign_outcomes=labels.foreign if labels else 0,
            ),
        )  # fmt: skip

    def _requests(self, found: MatureParts, published: Sequence[Batch]) -> tuple[pl.DataFrame, int]:
        """Return users' answered requests with rows, each once, and how many answers repeat one."""
        every = select_answered(pl.concat(found.frames))
        if self._replayed:
            # A rollout without users plays rows of the log again and again: nobody saw them.
            every = every.filter(pl.col("rollout").is_null())
        every = every.filter(pl.col("rows") > 0).sort("time", maintain_order=True)
        once = every.unique("request_id", keep="first", maintain_order=True)
        first, last = span_of_times(once["time"])
        if first is not None and last is not None:
            known = [self._log.requests(batch) for batch in published if _touches(batch, first, last)]
            if known:
                once = once.filter(~_fingerprints(once).is_in(pl.concat(known).implode()))
        return once, every.height - once.height

    def _good(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows that keep the rules of the log as it is declared now."""
        if not rows.height:
            return rows
        broken = clock_failures(rows, self._data) + broken_checks(rows, log_checks(self._data))
        return rows.filter(~flagged(rows.height, broken))

    def _check_outcomes(self, labels: Labels, requests: pl.DataFrame, folders: ServingPaths) -> None:
        """Refuse to take silence for negatives where the outcome log is missing, or another spec's."""
        if labels.matched:
            self._check_clocks(labels, folders)
            return
        if not parts(folders.outcomes):
            if self._data.live.missing_outcome == "negative":
                raise DataError(
                    f"{folders.outcomes}: there is no outcome log, and {requests.height:,} answered requests wait for"
                    " outcomes; they would all become negatives. Write outcomes there, or declare"
                    " data.live.missing_outcome: leave_out"
                )
            return
        unmatched = labels.unmatched
        if unmatched.len() < _FEW:
            return
        for path in parts(folders.predictions):
            asked = read_parts([path], prediction_schema(self._data), ["request_id"])["request_id"]
            unmatched = unmatched.filter(~unmatched.is_in(asked.implode()))
        if unmatched.len() == labels.unmatched.len():
            raise DataError(
                f"{folders.outcomes}: none of {unmatched.len():,} requests with outcomes, e.g. '{unmatched.sort()[0]}',"
                f" is in the prediction log of spec '{self._name}', and none of {requests.height:,} answered requests"
                " has an outcome; this is the outcome log of another spec, or its request ids are others. Nothing was"
                " collected; write outcomes with the x-request-id of the answer, and collect again"
            )

    def _check_clocks(self, labels: Labels, folders: ServingPaths) -> None:
        """Refuse to take clicks for negatives where the clock of who writes outcomes is not the servers'."""
        if labels.ahead >= _FEW and 2 * labels.ahead > labels.matched:
            raise DataError(
                f"{folders.outcomes}: {labels.ahead:,} of {labels.matched:,} outcomes are from more than"
                f" {self._data.live.max_clock_skew} after their files were written (data.live.max_clock_skew), up to"
                f" {labels.furthest / timedelta(minutes=1):,.1f} minutes; the clock of who writes outcomes is ahead,"
                " and outcomes that came in time would count as late. Nothing was collected; set the clocks, write"
                " these outcomes again with the right times, and collect again"
            )
        if labels.early < _FEW or 2 * labels.early <= labels.matched:
            return
        raise DataError(
            f"{folders.outcomes}: {labels.early:,} of {labels.matched:,} outcomes are from more than"
            f" {self._data.live.max_clock_skew} before their answers (data.live.max_clock_skew), up to"
            f" {labels.earliest / timedelta(minutes=1):,.1f} minutes; the clock of who writes outcomes is behind the"
            " servers', and their rows would become negatives. Nothing was collected; set the clocks, declare a larger"
            " data.live.max_clock_skew for what is written already, and collect again"
        )


def describe(batch: Batch) -> str:
    """Return what a batch holds, as one line for people."""
    counts = batch.counts
    others = {
        "without an outcome": counts.without_outcome, "quarantined": counts.quarantined,
        "before data.live.since": counts.before_since, "answers repeated": counts.repeated_requests,
        "outcomes late": counts.late_outcomes, "outcomes before their answer": counts.early_outcomes,
        "outcomes repeated": counts.repeated_outcomes, "outcomes of other items": counts.foreign_outcomes,
    }  # fmt: skip
    told = ", ".join(f"{count:,} {what}" for what, count in others.items() if count)
    when = f" from {batch.first:%Y-%m-%d %H:%M} to {batch.last:%Y-%m-%d %H:%M}" if batch.first and batch.last else ""
    return (
        f"Batch {batch.number}: {counts.rows:,} rows{when}, {counts.positives:,} positive{f'; {told}' if told else ''}"
    )


def _touches(batch: Batch, first: datetime, last: datetime) -> bool:
    if batch.answered_from is None or batch.answered_to is None:
        return False
    return batch.answered_from - _RETRIED_WITHIN <= last and first <= batch.answered_to + _RETRIED_WITHIN


def _fingerprints(requests: pl.DataFrame) -> pl.Series:
    return codes_of(requests["request_id"]).alias("request")


def _sorted(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.sort(Columns.TIME, Columns.IMPRESSION) if rows.height else rows
