"""The collector: answered requests and their outcomes become numbered batches of rows, exactly once.

A batch holds whole records of the prediction log whose outcomes are due, and lists them. The next number is taken by
one atomic create, after all files are written: a collector that is killed at any point has either published its batch
or not, and only one of two concurrent collectors publishes it. The next collector continues with the records that are
in no batch.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import polars as pl

from monitoring.windows.answered_requests import REQUEST, select_answered
from shortlist.collecting.live_labels import (
    OutcomeLabels,
    UnreadableOutcomesError,
    read_labels,
    unreadable_answers,
)
from shortlist.collecting.live_log import AnswerTimes, MatureAnswers, covered_records, mature_answers
from shortlist.collecting.live_rows import LiveRows, span_of_times
from shortlist.contracts import Columns, DataError, ShortlistError
from shortlist.data.base_rows import as_of_answer, clock_failures, flag_old_rows
from shortlist.data.collected import REQUESTS, ROWS, BatchCounts, CollectedBatch, CollectedLog
from shortlist.data.rules.failures import flag_failed_rows
from shortlist.data.rules.row_rules import build_log_checks, find_broken_checks
from shortlist.features.values.hashing import codes_of
from shortlist.serving.log.logs import REPLAYED_ID, item_type, outcome_columns, outcome_schema, prediction_schema
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.log.stored_logs import serving_log_paths
from shortlist.spec.data import Data
from shortlist.spec.serving import ReplayTraffic, Serving
from shortlist.spec.text.durations import parse_duration
from shortlist.storage.artefacts import sha256
from shortlist.storage.storage_config import StorageConfig

_MAX_FAILURES: Final = 50
"""Most times that another collector publishes first, or a file turns out to be unreadable."""
_RETRIED_WITHIN: Final = timedelta(days=1)
"""An answer up to this long after another one with the same id repeats it; a later one is a new request."""
_MIN_OUTCOMES: Final = 20
"""Fewest outcomes from which the state of the whole log is judged."""


@dataclass
class CollectorRun:
    """The result of one run of the collector."""

    batches: list[CollectedBatch] = field(default_factory=list)
    """The published batches."""
    waiting: int = 0
    """Number of logged answers whose outcomes are not due yet, or that wait until a file can be read."""
    old_rows: int = 0
    """Number of rows in the batches that are older than `data.live.max_age`, as those of a replay of the log are."""
    max_age: str | None = None
    """`data.live.max_age`."""
    problems: list[str] = field(default_factory=list)
    """Reasons for which answers wait: files that cannot be read, or outcomes that are missing."""

    @property
    def rows(self) -> int:
        """Number of rows in the published batches."""
        return sum(batch.counts.rows for batch in self.batches)

    @property
    def lines(self) -> tuple[str, ...]:
        """Sentences for the console."""
        sentences = [describe_batch(batch) for batch in self.batches] or ["No row is new."]
        if self.old_rows:
            sentences.append(
                f"{self.old_rows:,} quarantined row(s) are older than their answers by more than {self.max_age}"
                " (data.live.max_age): a replay of the log sends the log's own times. Such rows train nothing (rule"
                " client_clock); data.live.max_age: null accepts those that are later than the log."
            )
        if self.waiting:
            sentences.append(f"{self.waiting:,} answer(s) wait: their outcomes are not due yet.")
        return (*sentences, *self.problems)


class Collector:
    """Collects the live traffic of one spec.

    Args:
        name: Name of the spec.
        stores: Locations of the stores, as the graphs' `stores` parameter.
        data: The spec's `data` section.
        serving: The spec's `serving` section.
        most_rows: Approximate number of rows of a batch; it bounds the memory.
        log: The collected log; by default the one in the stores.
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
        self._name, self._data, self._most_rows = name, data, most_rows
        self._serving = serving
        self._replayed = isinstance(serving.traffic, ReplayTraffic)
        self._log = log or CollectedLog.open(stores, name)
        paths = serving_log_paths(StorageConfig.parse(stores), name)
        self._predictions = ServingLog.of_spec(paths, "predictions", prediction_schema(data))
        schema = outcome_schema(item_type(data), outcome_columns(data))
        self._outcomes = ServingLog.of_spec(paths, "outcomes", schema)

    def collect(self, now: datetime | None = None) -> CollectorRun:
        """Publish batches until no further records are due.

        Args:
            now: The present moment; the clock's by default.

        Answers whose outcomes cannot be read wait, with a message: they would become negatives.

        Raises:
            ShortlistError: A store is unavailable, or the disk is full. The records that are due are collected by the
                next run.
        """
        self._predictions.commit()
        self._outcomes.commit()
        now = now or datetime.now(UTC)
        collector_run, failures = CollectorRun(max_age=self._data.live.max_age), 0
        unreadable_times: dict[str, AnswerTimes] = {}
        while failures < _MAX_FAILURES:
            published = self._log.batches()
            mature = self._mature_answers(published, now, unreadable_times)
            collector_run.waiting = mature.waiting
            collector_run.problems = [*mature.problems, *self._outcomes.unreadable.values()]
            if not mature.frames:
                self._log.keep_read_files(mature.collected_files)
                return collector_run
            with TemporaryDirectory(prefix="shortlist-collect-") as scratch:
                try:
                    batch, old_rows = self._make_batch(mature, published, Path(scratch), now, unreadable_times)
                except UnreadableOutcomesError:  # other answers go on
                    unreadable_times |= unreadable_answers(self._outcomes, self._data)
                    failures += 1
                    continue
                except DataError as error:  # these answers wait; what was collected is there for trainings
                    collector_run.waiting += sum(frame.height for frame in mature.frames)
                    collector_run.problems.append(str(error))
                    return collector_run
                if self._log.publish(batch, Path(scratch)):
                    collector_run.batches.append(batch)
                    collector_run.old_rows += old_rows
                    self._log.keep_read_files(mature.collected_files)
                else:  # another collector was first: look for the remaining records again
                    failures += 1
        raise ShortlistError(
            f"spec '{self._name}': {failures} attempts failed, because other collectors published batches meanwhile or"
            " files could not be read; run again"
        )

    def _mature_answers(
        self, published: Sequence[CollectedBatch], now: datetime, unreadable: Mapping[str, AnswerTimes]
    ) -> MatureAnswers:
        assert self._data.live_outcome_delay is not None
        due = now - parse_duration(self._data.live_outcome_delay) - parse_duration(self._data.live.settle)
        covered, read_files = covered_records(published), self._log.read_files() if published else frozenset()
        return mature_answers(self._predictions, covered, due, self._most_rows, read_files, unreadable.values())

    def _make_batch(
        self, mature: MatureAnswers, published: Sequence[CollectedBatch], out: Path, now: datetime,
        passed_over: Collection[str],
    ) -> tuple[CollectedBatch, int]:  # fmt: skip
        """Write the files of the next batch; return it, and its number of rows that are too old."""
        requests, repeated_count = self._requests(mature, published)
        live_rows, labels, all_rows = LiveRows(self._data, self._serving), None, pl.DataFrame()
        if requests.height:
            labels = read_labels(self._outcomes, requests, self._data, passed_over)
            self._check_outcomes(labels, requests)
            all_rows = _sort_rows(live_rows.rows(requests, labels))
        valid_rows = self._select_valid(all_rows)
        all_rows.write_parquet(out / ROWS)
        (out / REQUESTS).mkdir()
        requests.select(pl.col(REQUEST).reinterpret(signed=True)).write_parquet(out / REQUESTS / f"{REQUESTS}.parquet")
        number = len(published) + 1
        first, last = span_of_times(valid_rows[Columns.TIME]) if valid_rows.height else (None, None)
        answered_from, answered_to = span_of_times(requests["time"])
        batch = CollectedBatch(
            number=number, spec=self._name, made=now, folder=self._log.files_key(number, secrets.token_hex(6)),
            digest=sha256(out / ROWS), spans=tuple(mature.spans), answered_from=answered_from, answered_to=answered_to,
            first=first, last=last,
            counts=BatchCounts(
                requests=requests.height, rows=valid_rows.height,
                positives=int((valid_rows[Columns.LABEL] == 1).sum()) if valid_rows.height else 0,
                quarantined=all_rows.height - valid_rows.height,
                without_outcome=live_rows.without_outcome, repeated_requests=repeated_count,
                before_since=live_rows.before_since,
                late_outcomes=labels.late if labels else 0, early_outcomes=labels.early if labels else 0,
                repeated_outcomes=labels.repeated if labels else 0, foreign_outcomes=labels.foreign if labels else 0,
            ),
        )  # fmt: skip
        return batch, int(flag_old_rows(all_rows, self._data).sum())

    def _requests(self, mature: MatureAnswers, published: Sequence[CollectedBatch]) -> tuple[pl.DataFrame, int]:
        """Return users' answered requests with rows, each once, and the number of repeated answers."""
        answers = select_answered(pl.concat(mature.frames))
        # A rollout without users replays rows of the log repeatedly, also before and after its route; no user saw them.
        answers = answers.filter(~pl.col("request_id").str.starts_with(REPLAYED_ID))
        if self._replayed:  # earlier versions did not mark them
            answers = answers.filter(pl.col("rollout").is_null())
        answers = answers.filter(pl.col("rows") > 0).sort("time", maintain_order=True)
        answers = answers.with_columns(_request_fingerprints(answers).reinterpret(signed=False).alias(REQUEST))
        unique_answers = answers.unique(REQUEST, keep="first", maintain_order=True)
        first, last = span_of_times(unique_answers["time"])
        if first is not None and last is not None:
            withdrawn = self._log.withdrawn()
            collected_requests = [
                self._log.read_request_fingerprints(batch)
                for batch in published
                if batch.number not in withdrawn and _overlaps(batch, first, last)
            ]
            if collected_requests:
                collected_hashes = pl.concat(collected_requests).reinterpret(signed=False)
                unique_answers = unique_answers.filter(~pl.col(REQUEST).is_in(collected_hashes.implode()))
        return unique_answers, answers.height - unique_answers.height

    def _select_valid(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows that pass the currently declared rules of the log."""
        if not rows.height:
            return rows
        rows = as_of_answer(rows, self._data)
        broken = clock_failures(rows, self._data) + find_broken_checks(rows, build_log_checks(self._data))
        return rows.filter(~flag_failed_rows(rows.height, broken))

    def _check_outcomes(self, labels: OutcomeLabels, requests: pl.DataFrame) -> None:
        """Raise DataError when the outcome log is missing or another spec's: its rows would become negatives."""
        if labels.matched:
            return
        if self._outcomes.open_table() is None:
            if self._data.live.missing_outcome == "negative":
                raise DataError(
                    f"{self._outcomes.address}: there is no outcome log, and {requests.height:,} answered requests wait"
                    " for outcomes; they would all become negatives. Report outcomes, or declare"
                    " data.live.missing_outcome: leave_out"
                )
            return
        unmatched = labels.unmatched
        if unmatched.len() < _MIN_OUTCOMES:
            return
        for logged in self._predictions.read(["request_id"]):
            unmatched = unmatched.filter(~unmatched.is_in(logged["request_id"].implode()))
        if unmatched.len() == labels.unmatched.len():
            raise DataError(
                f"{self._outcomes.address}: none of {unmatched.len():,} requests with outcomes, e.g."
                f" '{unmatched.sort()[0]}', is in the prediction log of spec '{self._name}', and none of"
                f" {requests.height:,} answered requests has an outcome; this is the outcome log of another spec, or"
                " its request ids are others. Nothing was collected; report outcomes with the x-request-id of the"
                " answer, and collect again"
            )


def describe_batch(batch: CollectedBatch) -> str:
    """Return a line for the console about a batch."""
    counts = batch.counts
    further_counts = {
        "without an outcome": counts.without_outcome, "quarantined": counts.quarantined,
        "before data.live.since": counts.before_since, "answers repeated": counts.repeated_requests,
        "outcomes late": counts.late_outcomes, "outcomes before their answer": counts.early_outcomes,
        "outcomes repeated": counts.repeated_outcomes, "outcomes of other items": counts.foreign_outcomes,
    }  # fmt: skip
    further_text = ", ".join(f"{count:,} {description}" for description, count in further_counts.items() if count)
    span_text = (
        f" from {batch.first:%Y-%m-%d %H:%M} to {batch.last:%Y-%m-%d %H:%M}" if batch.first and batch.last else ""
    )
    summary = f"Batch {batch.number}: {counts.rows:,} rows{span_text}, {counts.positives:,} positive"
    return f"{summary}; {further_text}" if further_text else summary


def _overlaps(batch: CollectedBatch, first: datetime, last: datetime) -> bool:
    if batch.answered_from is None or batch.answered_to is None:
        return False
    return batch.answered_from - _RETRIED_WITHIN <= last and first <= batch.answered_to + _RETRIED_WITHIN


def _request_fingerprints(requests: pl.DataFrame) -> pl.Series:
    """Return what a request and its repetitions have in common.

    Clients choose the ids: another request with a known or guessed id is another one. Repeated requests for slates may
    get other items.
    """
    digest = pl.when(pl.col("slate:release").is_null()).then("digest")
    parts = [pl.col(part).fill_null("") for part in ("request_id", "user", "sender")]
    return codes_of(requests.select(pl.concat_str([*parts, digest.fill_null("")], separator="\n")).to_series())


def _sort_rows(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.sort(Columns.TIME, Columns.IMPRESSION) if rows.height else rows
