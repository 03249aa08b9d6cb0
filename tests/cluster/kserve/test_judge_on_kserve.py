"""The judge of the laptop judges on a cluster: logs from the object store, and what Prometheus knows of the gateway."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import prometheus_server
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from kserve_world import World
from kube_server import Behaviour, KubeServer
from prometheus_server import PrometheusServer

from shortlist.contracts import ShortlistError
from shortlist.rollout.evidence.rollout_evidence import StepEvidence, TrackEvidence
from shortlist.rollout.kserve.gateway_metrics import GatewayMetrics, gateway_check
from shortlist.rollout.kserve.observer import KubeObserver, ServedRequests
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.states.phases import Phase
from shortlist.serving.log.logs import ANSWER_SCHEMA, outcome_schema
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.paths import ServingPaths
from shortlist.spec.log_shape import FurtherLabel, Positive
from shortlist.spec.serving import KPI, Canary, Guard, Guardrails, Serving
from shortlist.system.prometheus import Prometheus, PrometheusUnavailableError
from tests.served_log import write_rows

POLICY = Canary(
    steps=(50, 100), interval_seconds=0.05, deadline_seconds=60, drain_seconds=0, min_requests=100, min_users=50,
    kpi=KPI(max_drop=0.5), guardrails=Guardrails(max_p99_ms=200),
)  # fmt: skip
USERS = 400


@pytest.fixture
def prometheus() -> Iterator[PrometheusServer]:
    with prometheus_server.running() as server:
        yield server


class Traffic:
    """What servers, users and the gateway leave behind of a step, as soon as it is watched."""

    def __init__(self, world: World, prometheus: PrometheusServer, disks: Path) -> None:
        self.world, self.prometheus, self.disks = world, prometheus, disks
        self.steps = 0
        self.logs = True
        self.ms_of_canary = 5.0
        self.scores_of_canary = 0.0
        self.views_of_canary = 30.0
        self.refused_of_canary = 0
        self.bad_at_gateway: Callable[[], None] = lambda: None
        world.on_change = self.on_change

    def on_change(self, record: RolloutRecord) -> None:
        if record.state.phase is not Phase.WATCHING or len(record.steps) <= self.steps:
            return
        self.steps += 1
        split = USERS if record.state.percent == 100 else USERS // 2
        self.now = datetime.now(UTC)
        if self.logs:
            self.write(record, range(split), "canary", 2)
            self.write(record, range(split, USERS), "stable", 1)
        for track, count in (("stable", USERS - split), ("canary", split)):
            self.prometheus.tell(track, count, refused=self.refused_of_canary if track == "canary" else 0)
        self.bad_at_gateway()

    def write(self, record: RolloutRecord, users: range, track: str, version: int) -> None:
        if not users:
            return
        step, now = record.state.step, self.now
        latency_ms = self.ms_of_canary if track == "canary" else 5.0
        ids = [f"{record.id}-{step}-{user}" for user in users]
        rng = np.random.default_rng(step)
        scores = rng.uniform(0.2, 0.8, (len(users), 3)) + (self.scores_of_canary if track == "canary" else 0)
        rows = [
            {
                "time": now, "request_id": name, "user": f"u{user}", "sender": "backend", "track": track,
                "rollout": record.id, "step": step, "version": version, "status": 200, "latency_ms": latency_ms,
                "degraded": False, "scores": row_scores,
            }
            for name, user, row_scores in zip(ids, users, scores.tolist(), strict=True)
        ]  # fmt: skip
        views = self.views_of_canary if track == "canary" else 30.0
        outcomes = [
            {"time": now, "request_id": name, "row": row, "label": int(user % 3 == 0), "seconds": views}
            for name, user, row in zip(ids, users, scores.argmax(axis=1).tolist(), strict=True)
        ]
        schema = outcome_schema(pa.int64()).append(pa.field("seconds", pa.float64()))
        for kind, kind_schema, kind_rows in (("predictions", ANSWER_SCHEMA, rows), ("outcomes", schema, outcomes)):
            pod = self.disks / track
            write_rows(pod / kind, kind_schema, kind_rows, table=f"{self.world.objects.root}/logs/demo/{kind}")


@pytest.fixture
def traffic(world: World, prometheus: PrometheusServer, tmp_path: Path) -> Traffic:
    paths = ServingPaths.for_spec(tmp_path / "runs", "demo", world.objects.root)
    world.observe = lambda record: KubeObserver(
        world.fleet(), Prometheus(prometheus.url, 0.2), record, paths, Serving(), settled_seconds=0
    )
    return Traffic(world, prometheus, tmp_path / "disks")


def test_a_good_candidate_is_promoted_on_the_clusters_own_evidence(
    world: World, traffic: Traffic, kube: KubeServer
) -> None:
    record = world.roll_out(POLICY).canary()
    assert record.state.phase is Phase.PROMOTED, record.state.reason
    first = record.steps[0].last
    assert first is not None
    assert (first.canary.users, first.stable.users, first.canary.requests) == (200, 200, 200)
    assert {check.name: check.passed for check in first.checks}["gateway"] is True
    assert kube.wrong == []


def test_a_candidate_under_which_a_guarded_label_falls_is_rolled_back(
    world: World, traffic: Traffic, kube: KubeServer
) -> None:
    traffic.views_of_canary = 10.0
    guarded = POLICY.model_copy(update={"guards": {"long_view": Guard(max_drop=0.3)}})
    labels = {"long_view": FurtherLabel(column="seconds", positive=Positive(at_least=20))}
    record = world.roll_out(guarded, labels).canary()
    assert record.state.phase is Phase.ROLLED_BACK
    assert "long_view difference -1.0000 in [" in record.state.reason
    assert "it falls by more than 0.3" in record.state.reason
    last = record.steps[-1].last
    assert last is not None
    assert [(guard.label, guard.stable, guard.canary) for guard in last.guards] == [("long_view", 1.0, 0.0)]
    assert kube.wrong == []


def test_the_counts_of_the_whole_rollout_are_right(world: World, traffic: Traffic) -> None:
    record = world.roll_out(POLICY).canary()
    assert record.requests is not None
    assert (record.requests.total, record.requests.lost, record.requests.logged) == (800, 0, 800)


def test_errors_that_reached_no_server_roll_back(world: World, traffic: Traffic) -> None:
    """The pods of the canary are unreachable for some: no log knows of it, the gateway does."""
    traffic.bad_at_gateway = lambda: traffic.prometheus.tell("canary", 200, failed=40)
    record = world.roll_out(POLICY).canary()
    assert record.state.phase is Phase.ROLLED_BACK
    assert "40 of 240 answers failed at this step" in record.state.reason
    assert record.requests is not None
    assert record.requests.canary.failed == 40


def test_requests_that_the_gateway_refuses_are_no_failures_of_the_canary(world: World, traffic: Traffic) -> None:
    """One user who sends nonsense to the canary cannot roll it back."""
    traffic.refused_of_canary = 20  # at each of the two steps
    record = world.roll_out(POLICY).canary()
    assert record.state.phase is Phase.PROMOTED, record.state.reason
    assert record.requests is not None
    assert (record.requests.canary.failed, record.requests.canary.client_errors) == (0, 2 * 20)


def test_answers_that_are_slow_on_the_way_roll_back(world: World, traffic: Traffic) -> None:
    traffic.bad_at_gateway = lambda: traffic.prometheus.tell("canary", 200, slow=30)
    record = world.roll_out(POLICY).canary()
    assert record.state.phase is Phase.ROLLED_BACK
    assert "30 of 200 answers took longer than 200 ms at the gateway" in record.state.reason


def test_answers_that_are_slow_inside_the_server_roll_back(world: World, traffic: Traffic) -> None:
    traffic.ms_of_canary = 900.0
    record = world.roll_out(POLICY).canary()
    assert record.state.phase is Phase.ROLLED_BACK
    # The limit is a multiple of the stable track's 5 ms; an undecided rollout would go back at its deadline only.
    assert re.match(r"at 50 %: p99 latency 9\d\d\.\d ms > ", record.state.reason), record.state.reason


def test_scores_that_are_spread_otherwise_roll_back(world: World, traffic: Traffic) -> None:
    traffic.scores_of_canary = 0.5
    record = world.roll_out(POLICY).canary()
    assert "population stability index" in record.state.reason
    assert ".venv/bin/shortlist promote demo takes the newest blessed version over" in record.state.reason


def test_scores_are_not_compared_with_those_of_a_retired_version(world: World, traffic: Traffic) -> None:
    world.models.retired[1] = "it reads dwell"
    traffic.scores_of_canary = 0.5
    record = world.roll_out(POLICY).canary()
    assert record.state.phase is Phase.PROMOTED, record.state.reason
    assert "not compared: version 1 was retired: it reads dwell" in record.state.reason


def test_a_pod_that_crashed_rolls_back(world: World, traffic: Traffic, kube: KubeServer) -> None:
    kube.behaviour[world.name(2)] = Behaviour(restarts=1)
    assert "its servers crashed 1 time(s)" in world.roll_out(POLICY).canary().state.reason


# --- nothing seen is never a success: hold, then back at the deadline


def no_prometheus(traffic: Traffic) -> None:
    traffic.prometheus.broken = "503"


def nonsense(traffic: Traffic) -> None:
    traffic.prometheus.broken = "<html>a login page</html>"


def lose_metrics(traffic: Traffic) -> None:
    traffic.bad_at_gateway = traffic.prometheus.clusters.clear


def knows_half(traffic: Traffic) -> None:
    """One of the gateway's pods is not scraped, say."""
    traffic.bad_at_gateway = lambda: traffic.prometheus.tell("canary", 40)


def no_logs(traffic: Traffic) -> None:
    traffic.logs = False


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (no_prometheus, "Prometheus at .* does not answer"),
        (nonsense, "is not Prometheus'"),
        (lose_metrics, "Prometheus knows 0 requests of the canary at this step, its log 200"),
        (knows_half, "Prometheus knows 40 requests of the canary at this step, its log 200"),
        (no_logs, "no users"),
    ],
)
def test_what_cannot_be_seen_holds_and_then_goes_back(
    world: World, traffic: Traffic, spoil: Callable[[Traffic], None], reason: str
) -> None:
    spoil(traffic)
    record = world.roll_out(POLICY.model_copy(update={"deadline_seconds": 0.8})).canary()
    assert record.state.phase is Phase.ROLLED_BACK
    assert record.state.reason.startswith("at 50 %: undecided after ")
    assert re.search(reason, record.state.reason), record.state.reason


def test_a_store_that_is_away_for_a_moment_only_holds(
    world: World, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures_left = ServingLog.open_table, [3]

    def open_table(self: ServingLog) -> DeltaTable | None:
        if failures_left[0]:
            failures_left[0] -= 1
            raise ShortlistError("s3://bucket: does not answer")
        return real(self)

    monkeypatch.setattr(ServingLog, "open_table", open_table)
    assert world.roll_out(POLICY).canary().state.phase is Phase.PROMOTED
    assert failures_left == [0]


def test_an_error_of_prometheus_is_no_number(prometheus: PrometheusServer) -> None:
    asking = Prometheus(prometheus.url, 0.1)
    with pytest.raises(PrometheusUnavailableError, match="does not answer"):
        asking.query_by("le", "up")  # a question that it does not understand: 400
    prometheus.broken = '{"status": "success", "data": {"resultType": "matrix", "result": []}}'
    with pytest.raises(PrometheusUnavailableError, match="wanted a vector"):
        asking.query_by("le", "up")


def test_rows_that_other_pods_may_still_be_committing_are_held_back(
    tmp_path: Path,
) -> None:
    """One track's newest rows without the other's would look like a wrong split of the users."""
    now = datetime.now(UTC)
    for pod, age in (("early", 60), ("late", 1)):
        row = {
            "time": now - timedelta(seconds=age), "request_id": pod, "user": "u", "track": "stable", "rollout": "r",
            "step": 0, "version": 1, "status": 200, "scores": [0.5], "latency_ms": 1.5,
        }  # fmt: skip
        write_rows(tmp_path / "predictions", ANSWER_SCHEMA, [row])
    log = ServingLog(ANSWER_SCHEMA, str(tmp_path / "predictions"), None)
    served_requests = ServedRequests(log, "r", settled_seconds=30)
    assert [line for frame in served_requests.read() for line in frame["id"]] == ["early"]
    assert [line for frame in served_requests.read() for line in frame["id"]] == []
    served_requests._settled = timedelta(0)  # time goes by
    (frame,) = served_requests.read()
    assert frame.select("id", "us", "status").rows() == [("late", 1_500, 200)]


def test_a_stable_track_that_is_as_slow_on_the_way_holds_the_rollout() -> None:
    served = StepEvidence(TrackEvidence(requests=200), TrackEvidence(requests=200))
    canary = GatewayMetrics(answered=200, slow=30, timed=200)

    def status_of(slow: int) -> str:
        return gateway_check(POLICY, 0, served, GatewayMetrics(answered=200, slow=slow, timed=200), canary).status

    assert [status_of(slow) for slow in (0, 2, 25)] == ["breach", "breach", "wait"]
