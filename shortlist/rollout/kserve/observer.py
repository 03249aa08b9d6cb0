"""Observer of a rollout on a cluster: the servers' logs in the object store, and the gateway's metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import polars as pl

from shortlist.contracts import ShortlistError
from shortlist.rollout.checks.analysis import analyze_step
from shortlist.rollout.checks.analysis_observer import make_observation
from shortlist.rollout.checks.health import CheckResult
from shortlist.rollout.checks.observations import Observation
from shortlist.rollout.evidence.access_log import SCHEMA
from shortlist.rollout.evidence.counts import RequestTotals
from shortlist.rollout.evidence.reader import MAX_CLOCK_SKEW, EvidenceReader, is_routed_by_user
from shortlist.rollout.kserve.fleet import KubeFleet
from shortlist.rollout.kserve.gateway_metrics import (
    GatewayMetrics,
    gateway_check,
    gateway_metrics,
    merge_gateway_metrics,
)
from shortlist.rollout.record import RolloutRecord
from shortlist.serving.log.log_follower import LogFollower
from shortlist.serving.log.logs import ANSWER_SCHEMA
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.paths import ServingPaths
from shortlist.spec.serving import Serving
from shortlist.system.prometheus import Prometheus, PrometheusUnavailableError

SETTLED_SECONDS: Final = 30.0
"""Age at which the rows of all pods are expected in the table, after a flush, a commit and a retry.

Newer rows are held back: with the newest rows of one pod but not of another the split of users would look wrong."""
_COLUMNS: Final = (
    "time",
    "request_id",
    "user",
    "sender",
    "routed_by_user",
    "track",
    "rollout",
    "step",
    "status",
    "latency_ms",
)
_PATH: Final = "/infer"
"""Path of all requests in the prediction log."""


class ServedRequests:
    """The requests in the prediction log in the form of an access log; a source of an `EvidenceReader`.

    Latencies are measured inside the server, without the gateway. Requests that reached no server, or were refused,
    are missing.

    Args:
        predictions: The prediction log.
        rollout: Id of the rollout.
        settled_seconds: Age up to which rows are held back.
        since: When the rollout began: what was logged before is not read.
    """

    def __init__(
        self,
        predictions: ServingLog,
        rollout: str,
        settled_seconds: float = SETTLED_SECONDS,
        since: datetime | None = None,
    ) -> None:
        self._follower = LogFollower(predictions, _COLUMNS, None if since is None else since - MAX_CLOCK_SKEW)
        self._rollout, self._settled = rollout, timedelta(seconds=settled_seconds)
        self._waiting_rows: pl.DataFrame | None = None

    @property
    def unreadable(self) -> int:
        """Number of files that could not be read."""
        return self._follower.unreadable

    def read(self) -> Iterator[pl.DataFrame]:
        """Yield the rows that have settled since the last reading."""
        new = [rows.filter(pl.col("rollout") == self._rollout) for rows in self._follower.read_new()]
        rows = (
            pl.concat([*([] if self._waiting_rows is None else [self._waiting_rows]), *new])
            if new
            else self._waiting_rows
        )
        if rows is None:
            return
        settled = pl.col("time") <= datetime.now(UTC) - self._settled
        self._waiting_rows = rows.filter(~settled)
        yield _to_access_log_rows(rows.filter(settled))


def _to_access_log_rows(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(
        pl.col("time").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ"),
        pl.col("request_id").alias("id"),
        pl.when(is_routed_by_user()).then("user").alias("user"),
        "sender",
        "track",
        "rollout",
        pl.col("step").cast(pl.String),
        pl.lit(_PATH).alias("path"),
        pl.col("status").cast(pl.Int64),
        pl.lit(None, pl.Int64).alias("grpc"),
        pl.lit(None, pl.String).alias("details"),
        (pl.col("latency_ms").cast(pl.Float64) * 1000).round().cast(pl.Int64).alias("us"),
    ).cast(SCHEMA)


class KubeObserver:
    """Observes one rollout on a cluster; the canary analysis is the same as on one machine.

    Args:
        fleet: Fleet that reports the health of the servers.
        prometheus: Prometheus with the gateway's metrics.
        record: The rollout.
        paths: Paths of the spec, with the address of its logs in the object store.
        serving: The spec's section: the share of answers in the prediction log, and who vouches for users.
        settled_seconds: Age at which rows of the log are counted; also the wait at the end for the last rows.
    """

    def __init__(
        self,
        fleet: KubeFleet,
        prometheus: Prometheus,
        record: RolloutRecord,
        paths: ServingPaths,
        serving: Serving,
        settled_seconds: float = SETTLED_SECONDS,
    ) -> None:
        self._fleet, self._prometheus = fleet, prometheus
        self._state, self._policy, self._sampling = record.state, record.policy, serving.log.sampling
        self._settled_seconds = settled_seconds
        self._spec, self._retirement = record.spec, record.retirement
        policy, began = record.policy, record.began_at
        predictions = ServingLog.of_spec(paths, "predictions", ANSWER_SCHEMA)
        requests = ServedRequests(predictions, record.id, settled_seconds, began)
        self._reader = EvidenceReader(
            paths,
            record.id,
            len(policy.steps),
            policy.kpi,
            access=[requests],
            since=began,
            guarded=record.labels,
            vouches=serving.vouches_for_users,
        )
        self._metrics_by_step: dict[int, tuple[GatewayMetrics | None, GatewayMetrics | None]] = {}
        """Latest metrics of both tracks by step."""

    def observe_step(self, step: int, at_step_seconds: float) -> Observation:
        """Return the observation of a step, with the decision of the canary analysis."""
        health = self._fleet.health(self._state.candidate)
        checks: list[CheckResult] = []
        try:
            self._reader.poll()
        except (
            ShortlistError
        ) as error:  # a store that is unavailable holds the rollout; it is not the candidate's fault
            checks.append(CheckResult("logs", "wait", f"the logs cannot be read: {error}"))
        evidence = self._reader.snapshot()
        blind, served = "", evidence.at_step(step)
        try:
            self._metrics_by_step[step] = self._counted(step, at_step_seconds)
        except PrometheusUnavailableError as error:
            blind = str(error)
        for number, numbers in self._metrics_by_step.items():
            evidence = merge_gateway_metrics(evidence, number, *numbers, self._sampling)
        checks.append(gateway_check(self._policy, step, served, *self._metrics_by_step.get(step, (None, None)), blind))
        analysis = analyze_step(
            evidence, self._policy, step, at_step_seconds, health, checks, self._spec, self._retirement
        )
        return make_observation(evidence, self._policy, step, analysis)

    def total(self) -> RequestTotals:
        """Return the counts of all requests so far, after waiting for the last answers to reach the log."""
        time.sleep(self._settled_seconds)
        self._reader.poll()
        evidence = self._reader.snapshot()
        for number, numbers in self._metrics_by_step.items():
            evidence = merge_gateway_metrics(evidence, number, *numbers, self._sampling)
        return evidence.request_totals()

    def _counted(self, step: int, seconds: float) -> tuple[GatewayMetrics | None, GatewayMetrics | None]:
        slow = self._policy.guardrails.max_p99_ms
        ask = partial(gateway_metrics, self._prometheus, self._fleet.owner, seconds=seconds, max_ms=slow)
        # At the last step the stable track has no users.
        return None if self._policy.steps[step] == 100 else ask("stable"), ask("canary")
