"""What a whole cluster must do with a spec, row by row: train, cache, schedule, serve, promote, and take back.

`make test-cluster KUBECONFIG=path HOST=http://... SPEC=mine.yaml` runs the rows on a real cluster; the suite runs each
of them against its stand-ins, once sound and once with the fault that the row is there to find.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from real_cluster import Object, RealCluster

from shortlist.rollout.deployment import Route
from shortlist.rollout.kserve.fleet import is_terminal_failure
from shortlist.rollout.kserve.objects.owner import VERSION_LABEL, ObjectOwner
from shortlist.rollout.kserve.objects.route_writer import RouteWriter
from shortlist.system.kubernetes_api import INFERENCE_SERVICE, KubernetesAPI

_ENDED = ("SUCCEEDED", "SKIPPED", "FAILED", "CANCELED")


class RowFailedError(Exception):
    """The cluster does not do what a row wants; the message says what it did."""


class RowSkippedError(Exception):
    """A row cannot be tried; the message says why."""


class TrainingRun(NamedTuple):
    """A finished run of Kubeflow."""

    state: str
    seconds: float


class Pipelines(Protocol):
    """Kubeflow Pipelines, as the rows use it."""

    def train(self, attempt: int, change: str = "") -> TrainingRun:
        """Submit a training and return it when it has ended.

        Args:
            attempt: 1, or 2 for the same once more.
            change: Change of the spec, such as another number of rounds, which makes another version.
        """

    def scheduled_runs(self) -> int:
        """Start a recurring run that is due each minute, wait for its first run, delete it; return its runs."""

    def run_ids(self) -> set[str]:
        """Return the ids of all runs of the spec."""


@dataclass
class Acceptance:
    """A cluster under test, and what has been found out about it."""

    api: KubernetesAPI
    owner: ObjectOwner
    request: Callable[..., Any]
    """An administrator's request: method, path, body, content_type, query."""
    command: Callable[..., int]
    """Runs `shortlist COMMAND SPEC OPTIONS`; returns its exit code."""
    pipelines: Pipelines | None = None
    """None: no address of Kubeflow Pipelines is named."""
    post_alert: Callable[[str], int] | None = None
    """Sends an alert with the token `true` or `forged`; returns the status. None: there is no receiver."""
    canary_deadline_seconds: float = 60.0
    """When a canary without traffic is rolled back anyway, counted from its first users."""
    wait_seconds: float = 600
    """Longest wait for something to show."""
    look_seconds: float = 1.0
    first_seconds: float | None = None
    """How long the first training took."""

    @property
    def route(self) -> Route | None:
        """Who serves whom."""
        return RouteWriter(self.api, self.owner).read()

    def deployed(self) -> dict[int, str]:
        """Return the names of the InferenceServices by version."""
        services = self.api.find(INFERENCE_SERVICE, self.owner.labels())
        return {int(service["metadata"]["labels"][VERSION_LABEL]): service["metadata"]["name"] for service in services}

    def stable(self) -> int:
        """Return the version of the stable track."""
        route = self.route
        if route is None:
            raise RowFailedError("nothing is served: there is no HTTPRoute")
        return route.stable

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + self.wait_seconds
        while not holds():
            if time.monotonic() >= deadline:
                raise RowFailedError(f"{what}: not within {self.wait_seconds:g} s")
            time.sleep(self.look_seconds)

    @contextmanager
    def repeated(self, action: Callable[[], object]) -> Iterator[None]:
        """Repeat an action while the block runs: controllers undo it."""
        stop = threading.Event()

        def repeat() -> None:
            while not stop.wait(self.look_seconds):
                with suppress(Exception):
                    action()

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60)


# --- what KServe alone must do


def kserve_runs_a_written_service(cluster: RealCluster, service: Object, wait_seconds: float = 120) -> None:
    """Make a service whose images nobody can pull: KServe takes it, and says of each part that it does not run."""
    path = cluster.path_of(service)
    namespaced = {**service, "metadata": {**service["metadata"], "namespace": cluster.namespace}}
    cluster.request("POST", path.rpartition("/")[0], namespaced)
    parts = ("PredictorReady", "TransformerReady")
    try:
        deadline, statuses = time.monotonic() + wait_seconds, dict.fromkeys(parts, "Unknown")
        while "Unknown" in statuses.values():
            if time.monotonic() >= deadline:
                raise RowFailedError(f"KServe reports {statuses} after {wait_seconds:g} s")
            time.sleep(0.1)
            live = cluster.request("GET", path)
            conditions = (live.get("status") or {}).get("conditions") or []
            statuses |= {each["type"]: each["status"] for each in conditions if each["type"] in parts}
    finally:
        cluster.request("DELETE", path)
    refusals = [each["message"] for each in conditions if "Invalid value" in each.get("message", "")]
    if refusals or is_terminal_failure(live):
        raise RowFailedError(f"KServe refuses it: {refusals or live['status']['modelStatus']}")
    if "True" in statuses.values():
        raise RowFailedError(f"KServe reports {statuses} of images that nobody can pull")


# --- the rows


def a_training_succeeds(cluster: Acceptance) -> str:
    """A small training runs to its end."""
    run = _pipelines(cluster).train(1)
    if run.state != "SUCCEEDED":
        raise RowFailedError(f"the run ended {run.state}")
    cluster.first_seconds = run.seconds
    return f"{run.seconds:.0f} s"


def a_second_run_is_cached(cluster: Acceptance) -> str:
    """The same training once more succeeds, and does not compute anything again."""
    if (first := cluster.first_seconds) is None:
        raise RowSkippedError("the first training did not succeed")
    run = _pipelines(cluster).train(2)
    if run.state != "SUCCEEDED":
        raise RowFailedError(f"the run ended {run.state}")
    if run.seconds > first / 2:
        raise RowFailedError(f"{run.seconds:.0f} s after {first:.0f} s: its steps were computed again")
    return f"{run.seconds:.0f} s after {first:.0f} s"


def a_scheduled_run_starts(cluster: Acceptance) -> str:
    """A recurring run fires."""
    number = _pipelines(cluster).scheduled_runs()
    if not number:
        raise RowFailedError("no run of the schedule has started")
    return f"{number} started"


def a_release_is_served(cluster: Acceptance) -> str:
    """The first version gets all users."""
    if cluster.route is None and (code := cluster.command("deploy-canary")):
        raise RowFailedError(f"deploy-canary ended with {code}")
    version = cluster.stable()
    if version not in cluster.deployed():
        raise RowFailedError(f"version {version} has all users, and is not deployed")
    return f"version {version}"


def a_canary_is_promoted(cluster: Acceptance) -> str:
    """The next version takes over, and the former is deleted after it was confirmed."""
    former = cluster.stable()
    _make_version(cluster, "models.xgboost.rounds=21")
    if code := cluster.command("promote"):
        raise RowFailedError(f"promote ended with {code}")
    if (version := cluster.stable()) == former:
        raise RowFailedError(f"version {former} still serves")
    cluster.wait_until(lambda: former not in cluster.deployed(), f"version {former} is deleted")
    return f"version {version} after {former}"


def a_canary_without_transformer_is_rolled_back(cluster: Acceptance) -> str:
    """The pods of the canary's server are killed while it has users."""
    return _spoil_canary(cluster, "models.xgboost.rounds=22", _kill_transformer)


def a_canary_without_triton_is_not_promoted(cluster: Acceptance) -> str:
    """The canary's Triton is scaled to nothing while it has users; KServe goes on saying Ready."""
    return _spoil_canary(cluster, "models.xgboost.rounds=23", _scale_triton_to_nothing)


def a_rollback_brings_a_deleted_version_back(cluster: Acceptance) -> str:
    """The previous champion, whose servers are gone, serves again."""
    before = cluster.stable()
    if code := cluster.command("rollback"):
        raise RowFailedError(f"rollback ended with {code}")
    if (version := cluster.stable()) == before:
        raise RowFailedError(f"version {before} still serves")
    if version not in cluster.deployed():
        raise RowFailedError(f"version {version} has all users, and is not deployed")
    return f"version {version} after {before}"


def a_forged_webhook_is_refused(cluster: Acceptance) -> str:
    """An alert with a wrong token gets 401 and starts nothing."""
    post_alert = _receiver(cluster)
    if (status := post_alert("forged")) != 401:
        raise RowFailedError(f"a forged alert got {status}, wanted 401")
    return "401"


def a_true_webhook_starts_a_run(cluster: Acceptance) -> str:
    """An alert with the right token starts a training."""
    post_alert = _receiver(cluster)
    pipelines = _pipelines(cluster)
    before = pipelines.run_ids()
    if (status := post_alert("true")) != 200:
        raise RowFailedError(f"the alert got {status}, wanted 200")
    cluster.wait_until(lambda: pipelines.run_ids() > before, "a run of the alert")
    return "a run started"


ROWS: tuple[Callable[[Acceptance], str], ...] = (
    a_training_succeeds,
    a_second_run_is_cached,
    a_scheduled_run_starts,
    a_release_is_served,
    a_canary_is_promoted,
    a_canary_without_transformer_is_rolled_back,
    a_canary_without_triton_is_not_promoted,
    a_rollback_brings_a_deleted_version_back,
    a_forged_webhook_is_refused,
    a_true_webhook_starts_a_run,
)


class RowOutcome(NamedTuple):
    """Outcome of a row."""

    row: str
    outcome: str
    """`ok`, `FAILED` or `skipped`."""
    detail: str

    def __str__(self) -> str:
        return f"{self.outcome:<8} {self.row:<48} {self.detail}"


def run_rows(cluster: Acceptance, report: Callable[[str], object]) -> list[RowOutcome]:
    """Try every row, report each as soon as it is known, and return all."""
    outcomes = []
    for row in ROWS:
        try:
            outcome = RowOutcome(row.__name__, "ok", row(cluster))
        except RowSkippedError as reason:
            outcome = RowOutcome(row.__name__, "skipped", str(reason))
        except Exception as error:  # whatever fails, the next rows say more, and what was made is cleaned up
            outcome = RowOutcome(row.__name__, "FAILED", f"{error}" or type(error).__name__)
        report(str(outcome))
        outcomes.append(outcome)
    return outcomes


def clean_up(cluster: Acceptance) -> list[str]:
    """Delete the spec's route and servers; return what could not be deleted."""
    left = []
    try:
        RouteWriter(cluster.api, cluster.owner).remove()
        for service in cluster.api.find(INFERENCE_SERVICE, cluster.owner.labels()):
            cluster.api.delete(INFERENCE_SERVICE, service)
        cluster.wait_until(lambda: not cluster.deployed(), "the servers are gone")
    except Exception as error:
        left.append(str(error))
    return left


def _pipelines(cluster: Acceptance) -> Pipelines:
    if cluster.pipelines is None:
        raise RowSkippedError("no address of Kubeflow Pipelines is named: HOST=http://...")
    return cluster.pipelines


def _receiver(cluster: Acceptance) -> Callable[[str], int]:
    if cluster.post_alert is None:
        raise RowSkippedError("no receiver of alerts serves a spec that a test may train")
    return cluster.post_alert


def _make_version(cluster: Acceptance, change: str) -> None:
    """Train another version; without Kubeflow the registry's candidate is taken."""
    if cluster.pipelines is not None and (run := cluster.pipelines.train(1, change)).state != "SUCCEEDED":
        raise RowFailedError(f"the training of another version ended {run.state}")


def _spoil_canary(cluster: Acceptance, change: str, spoil: Callable[[Acceptance, str], object]) -> str:
    stable = cluster.stable()
    _make_version(cluster, change)

    spoilt_at: list[float] = []

    def spoil_when_it_has_users() -> None:
        route = cluster.route
        if route is not None and route.canary is not None:
            spoil(cluster, cluster.deployed()[route.canary])
            spoilt_at.append(time.monotonic())

    with cluster.repeated(spoil_when_it_has_users):
        code = cluster.command("deploy-canary")
    if not spoilt_at:
        raise RowFailedError(f"deploy-canary ended with {code} before the canary had users")
    if time.monotonic() - spoilt_at[0] >= cluster.canary_deadline_seconds:
        raise RowFailedError("the canary was rolled back at its deadline, not when it was lost")
    if code == 0 or cluster.stable() != stable:
        raise RowFailedError(
            f"deploy-canary ended with {code}, and version {cluster.stable()} serves; wanted version {stable}"
        )
    route = cluster.route
    if route is not None and route.canary is not None:
        raise RowFailedError(f"version {route.canary} still has {route.percent} % of the users")
    return f"version {stable} serves on"


def _kill_transformer(cluster: Acceptance, service: str) -> None:
    selector = f"serving.kserve.io/inferenceservice={service},component=transformer"
    cluster.request("DELETE", f"/api/v1/namespaces/{cluster.owner.namespace}/pods", labelSelector=selector)


def _scale_triton_to_nothing(cluster: Acceptance, service: str) -> None:
    path = f"/apis/apps/v1/namespaces/{cluster.owner.namespace}/deployments/{service}-predictor/scale"
    cluster.request("PATCH", path, {"spec": {"replicas": 0}}, content_type="application/merge-patch+json")
