"""Reads what Envoy, the servers and the users wrote about one rollout, poll by poll."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

import numpy as np
import polars as pl

from shortlist.contracts import label_column
from shortlist.rollout.evidence import RequestAccounting, RolloutEvidence, StepEvidence, TrackEvidence
from shortlist.rollout.evidence_access import AccessLog, AccessLogSource, of_rollout
from shortlist.rollout.evidence_guards import GuardedLabel
from shortlist.rollout.evidence_outcomes import OUTCOMES, REQUESTS, OutcomeJoin
from shortlist.rollout.evidence_users import SeenUsers, Users
from shortlist.rollout.log_parts import PartReader, is_routed_by_user
from shortlist.rollout.sequential_difference import UserValues, difference, mean_of_users
from shortlist.rollout.track_counts import TrackCounts
from shortlist.serving.log.logs import outcome_name
from shortlist.serving.paths import ServingPaths
from shortlist.spec.log_shape import FurtherLabel
from shortlist.spec.serving import KPI
from shortlist.storage.positive_rows import is_further_positive

ACCESS_LOGS: Final = ("envoy-a.access.jsonl", "envoy-b.access.jsonl")
_PREDICTIONS: Final = (
    "request_id",
    "user",
    "routed_by_user",
    "track",
    "rollout",
    "step",
    "status",
    "degraded",
    "scores",
    "slate:asked",
)


class EvidenceReader:
    """Everything that belongs to one rollout; who belongs is written in every line, so no clock says it.

    A new reader reads from the start of all files, and so knows all that one before it knew.
    """

    def __init__(
        self,
        paths: ServingPaths,
        rollout: str,
        steps: int,
        kpi: KPI,
        sampled: Callable[[str], bool] | None = None,
        access: Sequence[AccessLogSource] | None = None,
        since: datetime | None = None,
        guarded: Mapping[str, FurtherLabel] | None = None,
    ) -> None:
        """Prepare to read; nothing is opened yet.

        Args:
            paths: Where the logs are.
            rollout: Its id.
            steps: How many it has.
            kpi: What is counted.
            sampled: Whether the prediction log takes a request, by its id; None when it takes all.
            access: What tells of requests; by default both Envoys' access logs.
            since: When it began: far older parts of the logs are left alone.
            guarded: Further labels that are counted as it is, by name.
        """
        self._rollout, self._steps, self._sampled = rollout, steps, sampled
        self._access = access or [AccessLog(paths.logs / name) for name in ACCESS_LOGS]
        self._predictions = PartReader(
            paths.predictions, _PREDICTIONS, "rollout", lambda ids: (ids == rollout).any(), since
        )
        outcomes = ("request_id", "row", "label")
        labels = guarded or {}
        self._outcomes = PartReader(
            paths.outcomes,
            outcomes,
            "request_id",
            lambda ids: self._join.knows(ids.hash()),
            since,
            {
                label_column(name): is_further_positive(pl.col(outcome_name(label.column)), label)
                for name, label in labels.items()
            },
        )
        self._guarded = {name: GuardedLabel(label_column(name), kpi) for name in labels}
        self._tallies: dict[tuple[int, bool], TrackCounts] = {}
        self._ledger, self._users, self._join = RequestAccountant(), Users(), OutcomeJoin(kpi.top, kpi.slate)
        self._arrivals, self._settled = TrackAligner(last=steps - 1), Settled()

    def poll(self) -> None:
        """Read what is new."""
        for log in self._access:
            for lines in log.read():
                self._add_requests(of_rollout(lines, self._rollout))
        for rows in self._predictions.read():
            self._add_predictions(rows.filter(pl.col("rollout") == self._rollout))
        for rows in self._outcomes.read():
            named = rows.with_columns(pl.col("request_id").hash().alias("request"))
            self._join_outcomes(pl.DataFrame(schema=REQUESTS), named)

    def snapshot(self) -> RolloutEvidence:
        """Return what has been read."""
        values = self._users.values(self._steps)
        seen, flapped = self._users.seen(), self._users.flapped()
        steps = range(self._steps)
        return RolloutEvidence(
            rollout=self._rollout,
            steps=tuple(self._both([step], seen.get(step, {}), flapped.get(step, 0), values) for step in steps),
            whole=self._both(steps, self._users.seen_at_all(), sum(flapped.values()), values),
            kpi=difference(values),
            accounting=self._ledger.accounting(self._unreadable()),
            guards={name: label.difference(self._steps) for name, label in self._guarded.items()},
        )

    def _both(
        self, steps: Sequence[int], seen: Mapping[bool, SeenUsers], flapped: int, values: UserValues
    ) -> StepEvidence:
        stable, canary = (self._track(steps, track, seen.get(track, SeenUsers()), values) for track in (False, True))
        return StepEvidence(stable, canary, flapped)

    def _track(self, steps: Sequence[int], canary: bool, seen: SeenUsers, values: UserValues) -> TrackEvidence:
        total = sum((self._tallies[step, canary] for step in steps if (step, canary) in self._tallies), TrackCounts())
        chosen = np.zeros_like(values.canary)
        chosen[:, list(steps)] = values.canary[:, list(steps)] == canary
        mean, kpi_users = mean_of_users(values, chosen)
        return total.evidence(seen, mean if kpi_users else None, kpi_users)

    def _unreadable(self) -> int:
        lines = sum(log.unreadable for log in self._access)
        return lines + self._predictions.unreadable + self._outcomes.unreadable

    def _add_requests(self, requests: pl.DataFrame) -> None:
        if requests.is_empty():
            return
        requests = requests.filter(pl.col("step") < self._steps).with_columns(to_log="answered")
        if self._sampled is not None:
            chosen = pl.Series([self._sampled(name) for name in requests["id"]], dtype=pl.Boolean)
            requests = requests.with_columns(to_log=pl.col("answered") & chosen)
        for (step, canary), rows in requests.group_by("step", "canary"):
            self._tally(step, canary).add_requests(rows)
        named = pl.col("user").is_not_null()
        of_users = requests.filter(named).with_columns(pl.col("user").hash())
        self._users.count(of_users.filter("disconnected"), "disconnected")
        self._users.count(of_users.filter("client_error"), "refused")
        requests_of_users = requests.select("user", "step", "canary", "began", "disconnected")
        self._see(self._arrivals.comparable(requests_of_users))
        self._settle(self._settled.settled(requests_of_users))
        self._ledger.add(requests.filter("to_log")["id"].hash(), pl.Series(dtype=pl.UInt64))

    def _see(self, requests: pl.DataFrame) -> None:
        """Count the users of requests."""
        nobody = pl.col("user").is_null()
        for (step, canary), rows in requests.filter(nobody).group_by("step", "canary"):
            self._tally(step, canary).anonymous += rows.height
        self._users.count(requests.filter(~nobody).with_columns(pl.col("user").hash()), "seen")

    def _settle(self, requests: pl.DataFrame) -> None:
        """Count the users of requests with which nothing is under way any more."""
        nobody = pl.col("user").is_null()
        for (step, canary), rows in requests.filter(nobody).group_by("step", "canary"):
            self._tally(step, canary).anonymous_settled += rows.height
        self._users.count(requests.filter(~nobody).with_columns(pl.col("user").hash()), "settled")

    def _add_predictions(self, rows: pl.DataFrame) -> None:
        rows = _prepared(rows).filter(pl.col("step") < self._steps)
        for (step, canary), part in rows.group_by("step", "canary"):
            self._tally(step, canary).add_predictions(part)
        slates = rows.filter("slate", "good")
        self._users.count(slates, "slates")
        self._users.count(slates.filter(pl.col("scores").list.len() == 0), "empty_slates")
        self._ledger.add(pl.Series(dtype=pl.UInt64), rows.filter(pl.col("status") == 200)["request"])
        self._join_outcomes(rows.filter("good").select(REQUESTS.names()), pl.DataFrame(schema=OUTCOMES))

    def _join_outcomes(self, requests: pl.DataFrame, outcomes: pl.DataFrame) -> None:
        requests = requests.cast(REQUESTS)
        for label in self._guarded.values():
            label.add(requests, outcomes)
        changes = self._join.add(requests, outcomes.select(OUTCOMES.names()).cast(OUTCOMES))
        for (step, canary), part in changes.group_by("step", "canary"):
            self._tally(step, canary).add_outcomes(part)
        self._users.show(changes)

    def _tally(self, step: object, canary: object) -> TrackCounts:
        return self._tallies.setdefault((int(str(step)), bool(canary)), TrackCounts())


def _prepared(rows: pl.DataFrame) -> pl.DataFrame:
    finite = pl.col("scores").list.eval(pl.element().is_finite().fill_null(False)).list.all().fill_null(False)
    request = pl.col("request_id").hash()
    return rows.filter(pl.col("track").is_in(["stable", "canary"]), pl.col("step") >= 0).with_columns(
        request=request,
        # What is compared is what was routed: without the header that is a request, whatever user it names.
        user=pl.when(is_routed_by_user()).then(pl.col("user").hash()).otherwise(request),
        canary=pl.col("track") == "canary",
        degraded=pl.col("degraded").fill_null(False),
        good=finite & (pl.col("status") == 200),
        slate=pl.col("slate:asked").is_not_null(),
    )


KEPT: Final = 1_000_000
"""Request ids remembered; the oldest that are balanced are forgotten first, and cannot be found doubled any more."""
_NOTHING: Final = pl.Schema({"request": pl.UInt64(), "answered": pl.UInt32(), "logged": pl.UInt32()})


class RequestAccountant:
    """Counts per request id, as Envoy saw it and as the servers logged it."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._open = pl.DataFrame(schema=_NOTHING)
        self._closed = RequestAccounting()

    def add(self, answered: pl.Series, logged: pl.Series) -> None:
        """Count ids.

        Args:
            answered: Hashed ids of requests that Envoy answered with scores and that the log should hold.
            logged: Hashed ids of rows of the prediction log with status 200.
        """
        if not answered.len() + logged.len():
            return
        new = pl.concat([_counted(answered, 1, 0), _counted(logged, 0, 1)])
        both = pl.concat([self._open, new]).group_by("request", maintain_order=True)
        self._open = both.agg(pl.col("answered", "logged").sum())
        if self._open.height > self._kept:
            self._forget()

    def accounting(self, unreadable: int = 0) -> RequestAccounting:
        """Return the totals."""
        return replace(_plus(_totals(self._open), self._closed), unreadable=unreadable)

    def _forget(self) -> None:
        # The older half: those that are balanced, which nothing more is expected of, before those that are not.
        balanced = pl.col("answered") == pl.col("logged")
        rows = self._open.with_row_index("age").sort(~balanced, "age", maintain_order=True)
        old, young = rows.head(self._kept // 2), rows.slice(self._kept // 2).sort("age")
        self._closed = _plus(self._closed, _totals(old))
        self._open = young.drop("age")


def _plus(one: RequestAccounting, other: RequestAccounting) -> RequestAccounting:
    return RequestAccounting(
        **{name: getattr(one, name) + getattr(other, name) for name in RequestAccounting.__annotations__}
    )


def _counted(ids: pl.Series, answered: int, logged: int) -> pl.DataFrame:
    frame = pl.DataFrame({"request": ids.cast(pl.UInt64)})
    counts = pl.lit(answered, pl.UInt32).alias("answered"), pl.lit(logged, pl.UInt32).alias("logged")
    return frame.with_columns(*counts)


def _totals(rows: pl.DataFrame) -> RequestAccounting:
    # A client may use an id again: then as many rows as answers are right. One row without an answer is not doubled.
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
"""After which a request that reached Envoy has ended, one way or another: 30 s for an answer, 15 s to wait for a
server that is being restarted."""
_TRACK = ["step", "canary"]


class TrackAligner:
    """Holds requests back that are answered already while equally old ones of the other track may still wait.

    Envoy writes a line when a request ends. While one track answers late (its model server is being restarted, say),
    only the other one's requests are seen, and the users look as if they were all sent there.
    """

    def __init__(self, last: int) -> None:
        """Prepare.

        Args:
            last: The step at which everybody gets the canary; nothing is held back there.
        """
        self._last = last
        self._held: pl.DataFrame | None = None
        self._newest: pl.DataFrame | None = None

    def comparable(self, ended: pl.DataFrame) -> pl.DataFrame:
        """Return the requests, new ones and held ones, that began before the newest answered one of the slower track.

        Args:
            ended: Requests that ended since the last call; columns step, canary, began (microseconds), disconnected,
                and others.
        """
        requests = ended if self._held is None else pl.concat([self._held, ended])
        # A client that goes away ends its own request: that tells nothing of those that wait for the same servers.
        newest = ended.filter(~pl.col("disconnected")).group_by(_TRACK).agg(pl.col("began").max())
        if self._newest is not None:
            newest = pl.concat([self._newest, newest]).group_by(_TRACK).agg(pl.col("began").max())
        both = newest.group_by("step").agg(pl.col("began").min().alias("until"), pl.len().alias("tracks"))
        until = both.filter((pl.col("tracks") == 2) & (pl.col("step") != self._last)).drop("tracks")
        known = requests.join(until, on="step", how="left", maintain_order="left")
        is_known = (pl.col("step") == self._last) | (pl.col("began") <= pl.col("until")).fill_null(False)
        self._held, self._newest = known.filter(~is_known).drop("until"), newest
        return known.filter(is_known).drop("until")


class Settled:
    """Holds requests back until all that began with them must have ended.

    A slow track's requests end out of order, so that even up to its newest answer some are still missing. Only after
    the longest time that Envoy lets a request take is the split of its users known for certain.
    """

    def __init__(self, seconds: float = SETTLED_SECONDS) -> None:
        """Say how long a request takes at most."""
        self._microseconds = int(seconds * 1e6)
        self._held: pl.DataFrame | None = None
        self._now = 0

    def settled(self, ended: pl.DataFrame) -> pl.DataFrame:
        """Return the requests, new ones and held ones, that are old enough by the newest one's time.

        Args:
            ended: Requests that ended since the last call; columns began (microseconds), and others.
        """
        requests = ended if self._held is None else pl.concat([self._held, ended])
        newest = ended["began"].max()
        self._now = max(self._now, newest) if isinstance(newest, int) else self._now
        old = pl.col("began") <= self._now - self._microseconds
        self._held = requests.filter(~old)
        return requests.filter(old)
