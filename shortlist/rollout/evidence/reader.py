"""Incremental reader of the evidence of one rollout: access logs, prediction log and outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from shortlist.contracts import label_column
from shortlist.rollout.evidence.access_log import AccessLogFolder, AccessLogSource, rollout_requests
from shortlist.rollout.evidence.counts import TrackCounts, UserCounts
from shortlist.rollout.evidence.guarded_labels import GuardedLabel
from shortlist.rollout.evidence.outcomes import OUTCOMES, REQUESTS, OutcomeJoin
from shortlist.rollout.evidence.rollout_evidence import RequestAccounting, RolloutEvidence, StepEvidence, TrackEvidence
from shortlist.rollout.evidence.row_finder import RowFinder
from shortlist.rollout.evidence.sender_admission import SenderAdmission, is_backend
from shortlist.rollout.evidence.sequential_difference import UserValues, difference, mean_of_users
from shortlist.rollout.evidence.track_counter import TrackCounter, count_predictions, count_requests
from shortlist.rollout.evidence.users import UserTable
from shortlist.serving.log.log_follower import LogFollower
from shortlist.serving.log.logs import ANSWER_SCHEMA, outcome_name, outcome_schema
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.paths import ServingPaths
from shortlist.spec.log_shape import FurtherLabel
from shortlist.spec.serving import KPI
from shortlist.storage.positive_rows import is_further_positive

_PREDICTIONS: Final = (
    "request_id",
    "user",
    "sender",
    "routed_by_user",
    "track",
    "rollout",
    "step",
    "status",
    "degraded",
    "items",
    "scores",
    "slate:asked",
)
MAX_CLOCK_SKEW: Final = timedelta(minutes=5)
"""Largest difference between the clocks of a server, or a pod, and of the controller."""


class EvidenceReader:
    """Reads the evidence of one rollout; every line names its rollout, so no clock is needed to select them.

    A new reader starts at the beginning of all files, so it has the same evidence as an earlier one.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what a rollout declares
        self,
        paths: ServingPaths,
        rollout: str,
        steps: int,
        kpi: KPI,
        sampled: Callable[[str], bool] | None = None,
        access: Sequence[AccessLogSource] | None = None,
        since: datetime | None = None,
        guarded: Mapping[str, FurtherLabel] | None = None,
        vouches: Callable[[str | None], bool] = is_backend,
    ) -> None:
        """Prepare to read; nothing is opened yet.

        Args:
            paths: Folders of the logs.
            rollout: Id of the rollout.
            steps: Number of its steps.
            kpi: Declaration of the KPI.
            sampled: Whether a request, by its id, is sampled for the prediction log; None when all are.
            access: Access logs; by default those in the folder of logs.
            since: When the rollout began: what was logged long before is not read.
            guarded: Further labels by name that are counted like the KPI.
            vouches: Whether a sender vouches for its users; see `SenderAdmission`.
        """
        self._rollout, self._steps, self._sampled = rollout, steps, sampled
        self._access = access or [AccessLogFolder(paths.logs)]
        oldest = None if since is None else since - MAX_CLOCK_SKEW
        predictions = ServingLog.of_spec(paths, "predictions", ANSWER_SCHEMA)
        self._predictions = LogFollower(predictions, _PREDICTIONS, oldest)
        labels = guarded or {}
        self._positives = {
            label_column(name): is_further_positive(pl.col(outcome_name(label.column)), label)
            for name, label in labels.items()
        }
        columns = dict.fromkeys(outcome_name(label.column) for label in labels.values())
        schema = outcome_schema(pa.null())
        for name in columns:
            schema = schema.append(pa.field(name, pa.null()))  # as it was written
        outcomes = ServingLog.of_spec(paths, "outcomes", schema)
        self._outcomes = LogFollower(outcomes, ("request_id", "item", "row", "label", *columns), oldest)
        self._guarded = {name: GuardedLabel(label_column(name), kpi) for name in labels}
        self._counters: dict[tuple[int, bool], TrackCounter] = {}
        # Each log by itself, since neither waits for the other's lines.
        self._admission, self._prediction_admission = SenderAdmission(vouches), SenderAdmission(vouches)
        self._left_out = {False: TrackCounts(), True: TrackCounts()}
        self._accountant, self._users, self._join = RequestAccountant(), UserTable(), OutcomeJoin(kpi.top, kpi.slate)
        self._row_finder = RowFinder()
        self._aligner, self._settler = TrackAligner(last=steps - 1), RequestSettler()

    def poll(self) -> None:
        """Read everything that is new in the logs."""
        for log in self._access:
            for lines in log.read():
                self._add_requests(rollout_requests(lines, self._rollout))
        for rows in self._predictions.read_new():
            self._add_predictions(rows.filter(pl.col("rollout") == self._rollout))
        for rows in self._outcomes.read_new():
            positives = [expression.alias(name) for name, expression in self._positives.items()]
            labelled = rows.filter(pl.col("label").is_not_null())
            has_user = labelled.with_columns(pl.col("request_id").hash().alias("request"), *positives)
            self._join_outcomes(pl.DataFrame(schema=REQUESTS), self._row_finder.add_outcomes(has_user))

    def snapshot(self) -> RolloutEvidence:
        """Return the evidence that has been read so far."""
        values = self._users.values(self._steps)
        user_counts, users_on_both_tracks = self._users.count_by_step(), self._users.users_on_both_tracks()
        steps = range(self._steps)
        return RolloutEvidence(
            rollout=self._rollout,
            steps=tuple(
                self._step_evidence([step], user_counts.get(step, {}), users_on_both_tracks.get(step, 0), values)
                for step in steps
            ),
            whole=self._step_evidence(steps, self._users.count_overall(), sum(users_on_both_tracks.values()), values),
            kpi=difference(values),
            accounting=self._accountant.accounting(self._unreadable()),
            guards={name: label.difference(self._steps) for name, label in self._guarded.items()},
            left_out=dict(self._left_out),
        )

    def _step_evidence(
        self,
        steps: Sequence[int],
        user_counts: Mapping[bool, UserCounts],
        users_on_both_tracks: int,
        values: UserValues,
    ) -> StepEvidence:
        stable, canary = (
            self._track_evidence(steps, track, user_counts.get(track, UserCounts()), values) for track in (False, True)
        )
        return StepEvidence(stable, canary, users_on_both_tracks)

    def _track_evidence(
        self, steps: Sequence[int], canary: bool, user_counts: UserCounts, values: UserValues
    ) -> TrackEvidence:
        total = sum(
            (self._counters[step, canary] for step in steps if (step, canary) in self._counters),
            TrackCounter(),
        )
        is_counted = np.zeros_like(values.canary)
        is_counted[:, list(steps)] = values.canary[:, list(steps)] == canary
        mean, kpi_users = mean_of_users(values, is_counted)
        return total.evidence(user_counts, mean if kpi_users else None, kpi_users)

    def _unreadable(self) -> int:
        lines = sum(log.unreadable for log in self._access)
        return lines + self._predictions.unreadable + self._outcomes.unreadable

    def _add_requests(self, requests: pl.DataFrame) -> None:
        if requests.is_empty():
            return
        requests = requests.filter(pl.col("step") < self._steps).with_columns(to_log="answered")
        if self._sampled is not None:
            is_sampled = pl.Series([self._sampled(name) for name in requests["id"]], dtype=pl.Boolean)
            requests = requests.with_columns(to_log=pl.col("answered") & is_sampled)
        self._accountant.add(requests.filter("to_log")["id"].hash(), pl.Series(dtype=pl.UInt64))
        user = pl.coalesce("user", "id").hash()
        is_evidence = self._admission.admit(requests.with_columns(user=user))
        for (step, canary), rows in requests.filter(~is_evidence).group_by("step", "canary"):
            self._left_out[bool(canary)] += count_requests(rows)
            self._track_counter(step, canary).add_left_out(rows, "left_out")
        requests = requests.filter(is_evidence)
        for (step, canary), rows in requests.group_by("step", "canary"):
            self._track_counter(step, canary).add_requests(rows)
        has_user = pl.col("user").is_not_null()
        of_users = requests.filter(has_user).with_columns(pl.col("user").hash())
        self._users.add_event(of_users.filter("disconnected"), "disconnected_users")
        self._users.add_event(of_users.filter("client_errors"), "refused_users")
        requests_of_users = requests.select("user", "step", "canary", "began", "disconnected")
        self._count_comparable(self._aligner.take_comparable(requests_of_users))
        self._count_settled(self._settler.take_settled(requests_of_users))

    def _count_comparable(self, requests: pl.DataFrame) -> None:
        """Count the users of requests."""
        has_no_user = pl.col("user").is_null()
        for (step, canary), rows in requests.filter(has_no_user).group_by("step", "canary"):
            self._track_counter(step, canary).add_anonymous(users=rows.height)
        self._users.add_event(requests.filter(~has_no_user).with_columns(pl.col("user").hash()), "users")

    def _count_settled(self, requests: pl.DataFrame) -> None:
        """Count the users of settled requests."""
        has_no_user = pl.col("user").is_null()
        for (step, canary), rows in requests.filter(has_no_user).group_by("step", "canary"):
            self._track_counter(step, canary).add_anonymous(settled_users=rows.height)
        self._users.add_event(requests.filter(~has_no_user).with_columns(pl.col("user").hash()), "settled_users")

    def _add_predictions(self, rows: pl.DataFrame) -> None:
        rows = _prepare_predictions(rows).filter(pl.col("step") < self._steps)
        self._accountant.add(pl.Series(dtype=pl.UInt64), rows.filter(pl.col("status") == 200)["request"])
        is_evidence = self._prediction_admission.admit(rows)
        for (step, canary), part in rows.filter(~is_evidence).group_by("step", "canary"):
            self._left_out[bool(canary)] += count_predictions(part)
            self._track_counter(step, canary).add_left_out(part, "logged_left_out")
        rows = rows.filter(is_evidence)
        for (step, canary), part in rows.group_by("step", "canary"):
            self._track_counter(step, canary).add_predictions(part)
        slates = rows.filter("slate", "good")
        self._users.add_event(slates, "slate_users")
        self._users.add_event(slates.filter(pl.col("scores").list.len() == 0), "empty_slate_users")
        good = rows.filter("good")
        placed_outcomes = self._row_finder.add_requests(good.select("request", "items"))
        no_outcomes = pl.DataFrame(schema=OUTCOMES)
        self._join_outcomes(good.select(REQUESTS.names()), no_outcomes if placed_outcomes is None else placed_outcomes)

    def _join_outcomes(self, requests: pl.DataFrame, outcomes: pl.DataFrame) -> None:
        requests = requests.cast(REQUESTS)
        for label in self._guarded.values():
            label.add(requests, outcomes)
        changes = self._join.add(requests, outcomes.select(OUTCOMES.names()).cast(OUTCOMES))
        for (step, canary), part in changes.group_by("step", "canary"):
            self._track_counter(step, canary).add_outcomes(part)
        self._users.add_outcomes(changes)

    def _track_counter(self, step: object, canary: object) -> TrackCounter:
        return self._counters.setdefault((int(str(step)), bool(canary)), TrackCounter())


def is_routed_by_user() -> pl.Expr:
    """Return whether the track of a request in the prediction log was chosen by its user."""
    return pl.col("user").is_not_null() & pl.col("routed_by_user").fill_null(True)


def _prepare_predictions(rows: pl.DataFrame) -> pl.DataFrame:
    finite = pl.col("scores").list.eval(pl.element().is_finite().fill_null(False)).list.all().fill_null(False)
    request = pl.col("request_id").hash()
    return rows.filter(pl.col("track").is_in(["stable", "canary"]), pl.col("step") >= 0).with_columns(
        request=request,
        # The unit of comparison is what was routed at random: without the user header a single request.
        user=pl.when(is_routed_by_user()).then(pl.col("user").hash()).otherwise(request),
        canary=pl.col("track") == "canary",
        degraded=pl.col("degraded").fill_null(False),
        good=finite & (pl.col("status") == 200),
        slate=pl.col("slate:asked").is_not_null(),
    )


MAX_OPEN_REQUESTS: Final = 1_000_000
"""Most request ids that are remembered; beyond it the oldest balanced ones are closed: later doubles go unnoticed."""
_LEDGER_SCHEMA: Final = pl.Schema({"request": pl.UInt64(), "answered": pl.UInt32(), "logged": pl.UInt32()})


class RequestAccountant:
    """Counts of each request id in Envoy's access logs and in the prediction log."""

    def __init__(self, max_open: int = MAX_OPEN_REQUESTS) -> None:
        self._max_open = max_open
        self._open = pl.DataFrame(schema=_LEDGER_SCHEMA)
        self._closed = RequestAccounting()

    def add(self, answered: pl.Series, logged: pl.Series) -> None:
        """Count request ids.

        Args:
            answered: Hashed ids of answered requests that the prediction log should contain.
            logged: Hashed ids of rows of the prediction log with status 200.
        """
        if not answered.len() + logged.len():
            return
        new = pl.concat([_id_counts(answered, 1, 0), _id_counts(logged, 0, 1)])
        by_key = pl.concat([self._open, new]).group_by("request", maintain_order=True)
        self._open = by_key.agg(pl.col("answered", "logged").sum())
        if self._open.height > self._max_open:
            self._close_balanced()

    def accounting(self, unreadable: int = 0) -> RequestAccounting:
        """Return the totals."""
        return replace(_add_accountings(_totals(self._open), self._closed), unreadable=unreadable)

    def _close_balanced(self) -> None:
        # Close the older half, balanced ids first: no more rows are expected of them.
        balanced = pl.col("answered") == pl.col("logged")
        rows = self._open.with_row_index("age").sort(~balanced, "age", maintain_order=True)
        is_old, remaining = rows.head(self._max_open // 2), rows.slice(self._max_open // 2).sort("age")
        self._closed = _add_accountings(self._closed, _totals(is_old))
        self._open = remaining.drop("age")


def _add_accountings(first: RequestAccounting, second: RequestAccounting) -> RequestAccounting:
    return RequestAccounting(
        **{name: getattr(first, name) + getattr(second, name) for name in RequestAccounting.__annotations__}
    )


def _id_counts(ids: pl.Series, answered: int, logged: int) -> pl.DataFrame:
    frame = pl.DataFrame({"request": ids.cast(pl.UInt64)})
    counts = pl.lit(answered, pl.UInt32).alias("answered"), pl.lit(logged, pl.UInt32).alias("logged")
    return frame.with_columns(*counts)


def _totals(rows: pl.DataFrame) -> RequestAccounting:
    # A client may reuse an id: then as many rows as answers are expected. One row without an answer is no double.
    answered, logged = pl.col("answered").cast(pl.Int64), pl.col("logged").cast(pl.Int64)
    expected = pl.max_horizontal(answered, pl.lit(1))
    totals = rows.select(
        answered=answered.sum(),
        logged=logged.sum(),
        lost=(answered - logged).clip(lower_bound=0).sum(),
        doubled=(logged - expected).clip(lower_bound=0).sum(),
        unanswered=((answered == 0) & (logged > 0)).sum(),
    )
    return RequestAccounting(**{name: int(value or 0) for name, value in totals.row(0, named=True).items()})


SETTLED_SECONDS: Final = 45.0
"""Longest duration of a request in Envoy: 30 s for an answer, and 15 s to wait for a server that restarts."""
_TRACK = ["step", "canary"]


class TrackAligner:
    """Holds answered requests back while equally old requests of the other track may still be in flight.

    Envoy writes a line when a request ends. While one track answers late, for example because its server restarts,
    only requests of the other track are in the logs, and the split of the users would look wrong.
    """

    def __init__(self, last: int) -> None:
        """Start without requests.

        Args:
            last: The step at 100 %, at which nothing is held back.
        """
        self._last = last
        self._waiting_requests: pl.DataFrame | None = None
        self._newest: pl.DataFrame | None = None

    def take_comparable(self, ended: pl.DataFrame) -> pl.DataFrame:
        """Return the new and waiting requests that began before the newest answered request of the slower track.

        Args:
            ended: Requests that ended since the last call; columns step, canary, began (microseconds), disconnected,
                and others.
        """
        requests = ended if self._waiting_requests is None else pl.concat([self._waiting_requests, ended])
        # A disconnecting client ends its own request, which says nothing about others that wait for the same server.
        newest = ended.filter(~pl.col("disconnected")).group_by(_TRACK).agg(pl.col("began").max())
        if self._newest is not None:
            newest = pl.concat([self._newest, newest]).group_by(_TRACK).agg(pl.col("began").max())
        by_key = newest.group_by("step").agg(pl.col("began").min().alias("until"), pl.len().alias("tracks"))
        until = by_key.filter((pl.col("tracks") == 2) & (pl.col("step") != self._last)).drop("tracks")
        with_limit = requests.join(until, on="step", how="left", maintain_order="left")
        is_known = (pl.col("step") == self._last) | (pl.col("began") <= pl.col("until")).fill_null(False)
        self._waiting_requests, self._newest = with_limit.filter(~is_known).drop("until"), newest
        return with_limit.filter(is_known).drop("until")


class RequestSettler:
    """Holds requests back until all requests that began at the same time must have ended.

    Requests of a slow track end out of order, so some may be missing even before its newest answer. The split of the
    users is known for certain only after the longest time that Envoy allows a request.
    """

    def __init__(self, seconds: float = SETTLED_SECONDS) -> None:
        """Start without requests.

        Args:
            seconds: Longest duration of a request.
        """
        self._microseconds = int(seconds * 1e6)
        self._waiting_requests: pl.DataFrame | None = None
        self._now = 0

    def take_settled(self, ended: pl.DataFrame) -> pl.DataFrame:
        """Return the new and waiting requests that are old enough, measured from the newest request.

        Args:
            ended: Requests that ended since the last call; columns began (microseconds), and others.
        """
        requests = ended if self._waiting_requests is None else pl.concat([self._waiting_requests, ended])
        newest = ended["began"].max()
        self._now = max(self._now, newest) if isinstance(newest, int) else self._now
        is_old = pl.col("began") <= self._now - self._microseconds
        self._waiting_requests = requests.filter(~is_old)
        return requests.filter(is_old)
