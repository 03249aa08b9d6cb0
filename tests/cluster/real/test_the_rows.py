"""Each row of the acceptance of a whole cluster, on the stand-ins: sound it passes, with its fault it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import acceptance
import bare_api
import pytest
from acceptance import Acceptance, RowFailedError, RowSkippedError, TrainingRun
from kserve_world import CLUSTER, Script, World
from kube_server import Behaviour, KubeServer, Object, running
from kubernetes import client
from real_cluster import RealCluster
from test_real_cluster import written, wrong_rights

from shortlist.rollout.checks.observations import Observation
from shortlist.rollout.states.phases import Phase
from shortlist.system.kubernetes_api import KubernetesAPI

STATUSES = {"true": 200, "forged": 401}
"""Answers of a sound receiver, by token."""


class Patient(Script):
    """A judge who looks often before he is content, so that a fault has time."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks, self._left = looks, looks

    def observe_step(self, step: int, at_step_seconds: float) -> Observation:
        observation = super().observe_step(step, at_step_seconds)
        if self._left:
            self._left -= 1
            return observation.model_copy(update={"decision": "hold"})
        self._left = self.looks
        return observation


@dataclass
class PlayedPipelines:
    """Kubeflow Pipelines whose runs end at once."""

    make_version: Callable[[], None]
    state: str = "SUCCEEDED"
    seconds: dict[int, float] = field(default_factory=lambda: {1: 480.0, 2: 60.0})
    scheduled: int = 1
    runs: set[str] = field(default_factory=set)

    def train(self, attempt: int, change: str = "") -> TrainingRun:
        if change:
            self.make_version()
        self.runs.add(f"{attempt} {change}")
        return TrainingRun(self.state, self.seconds[attempt])

    def scheduled_runs(self) -> int:
        return self.scheduled

    def run_ids(self) -> set[str]:
        return set(self.runs)


@dataclass
class Played:
    """The cluster of a test, and the parts in which a fault is planted."""

    cluster: Acceptance
    pipelines: PlayedPipelines
    world: World
    kube: KubeServer


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    with running() as kube:
        world = World(tmp_path, kube.url, ready_seconds=1.0)
        world.observe = lambda _: Patient(looks=15)

        def make_version() -> None:
            version = max(int(path.name) for path in world.models.folder.iterdir() if path.name.isdigit()) + 1
            world.models.add(version)
            world.models.set_alias("candidate", version)

        def command(name: str) -> int:
            rolling = world.roll_out()
            match name:
                case "deploy-canary":
                    return int(rolling.canary().state.phase is not Phase.PROMOTED)
                case "promote":
                    return int(rolling.promote().state.phase is not Phase.PROMOTED)
                case _:
                    return int(not rolling.rollback().is_rolled_back)

        configuration = client.Configuration(host=kube.url)
        api = client.ApiClient(configuration)
        pipelines = PlayedPipelines(make_version)

        def post_alert(token: str) -> int:
            status = STATUSES[token]
            pipelines.runs |= {"alert"} if status == 200 else set()
            return status

        cluster = Acceptance(
            api=KubernetesAPI(api, CLUSTER.namespace, 5.0, 0.02, 0.2),
            owner=world.fleet().owner,
            request=RealCluster(api, CLUSTER.namespace).request,
            command=command,
            pipelines=pipelines,
            post_alert=post_alert,
            wait_seconds=3.0,
            look_seconds=0.02,
        )
        yield Played(cluster, pipelines, world, kube)


def test_a_sound_cluster_passes_every_row_and_every_object_is_deleted(played: Played) -> None:
    lines: list[str] = []
    (played.world.models.folder / "champion.json").unlink()
    outcomes = acceptance.run_rows(played.cluster, lines.append)
    assert [outcome.row for outcome in outcomes if outcome.outcome != "ok"] == [], lines
    assert len(lines) == len(acceptance.ROWS) == 10
    assert acceptance.clean_up(played.cluster) == []
    assert (played.kube.named("InferenceService"), played.kube.named("HTTPRoute")) == ([], [])


def fails(played: Played) -> None:
    played.pipelines.state = "FAILED"


def computes_again(played: Played) -> None:
    played.cluster.first_seconds = 480.0
    played.pipelines.seconds[2] = 470.0


def never_fires(played: Played) -> None:
    played.pipelines.scheduled = 0


def does_nothing(played: Played) -> None:
    """The command says that it was done, and changes nothing."""
    played.cluster.command = lambda name: 0


def serves_nothing(played: Played) -> None:
    played.cluster.command = lambda name: 0
    played.world.fleet().withdraw()


def trusts_ready(played: Played) -> None:
    """The rollout looks at nothing but KServe's condition Ready, as it once did."""
    from shortlist.rollout.kserve.fleet import KubeFleet

    real = played.cluster.command

    def command(name: str) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(KubeFleet, "_failures", lambda self, service: [])
            return real(name)

    played.cluster.command = command


def accepts_everything(played: Played) -> None:
    played.cluster.post_alert = lambda token: 200


def starts_nothing(played: Played) -> None:
    played.cluster.post_alert = STATUSES.__getitem__


FAULTS: dict[str, tuple[Callable[[Played], None], str]] = {
    "a_training_succeeds": (fails, "the run ended FAILED"),
    "a_second_run_is_cached": (computes_again, "470 s after 480 s: its steps were computed again"),
    "a_scheduled_run_starts": (never_fires, "no run of the schedule has started"),
    "a_release_is_served": (serves_nothing, "nothing is served: there is no HTTPRoute"),
    "a_canary_is_promoted": (does_nothing, "version 1 still serves"),
    "a_canary_without_transformer_is_rolled_back": (trusts_ready, "deploy-canary ended with 0, and version 3 serves"),
    "a_canary_without_triton_is_not_promoted": (trusts_ready, "deploy-canary ended with 0, and version 3 serves"),
    "a_rollback_brings_a_deleted_version_back": (does_nothing, "version 1 still serves"),
    "a_forged_webhook_is_refused": (accepts_everything, "a forged alert got 200, wanted 401"),
    "a_true_webhook_starts_a_run": (starts_nothing, "a run of the alert: not within 3 s"),
}


@pytest.mark.parametrize("row", acceptance.ROWS, ids=lambda row: row.__name__)
def test_each_row_finds_its_fault(played: Played, row: Callable[[Acceptance], str]) -> None:
    played.world.serve(1)
    plant, message = FAULTS[row.__name__]
    plant(played)
    with pytest.raises(RowFailedError, match=message):
        row(played.cluster)


@pytest.fixture
def kserve() -> Iterator[tuple[RealCluster, KubeServer, Object]]:
    """A cluster where KServe alone runs, and a service that a rollout writes."""
    body = next(written())
    with running() as kube:
        kind = {"name": "inferenceservices", "kind": "InferenceService", "namespaced": True}
        kube.objects_by_path["/apis/serving.kserve.io/v1beta1"] = {"resources": [kind]}
        kube.behaviour[body["metadata"]["name"]] = Behaviour(waiting="ErrImagePull")
        yield RealCluster(client.ApiClient(client.Configuration(host=kube.url)), "ml"), kube, body


def test_kserve_runs_a_written_service(kserve: tuple[RealCluster, KubeServer, Object]) -> None:
    cluster, kube, body = kserve
    acceptance.kserve_runs_a_written_service(cluster, body, wait_seconds=3)
    assert kube.named("InferenceService") == []


def mounts_twice(service: Object) -> None:
    container = service["spec"]["predictor"]["containers"][0]
    container["volumeMounts"].append(container["volumeMounts"][0])


@pytest.mark.parametrize(
    ("behaviour", "spoil", "message"),
    [
        (Behaviour(), None, "reports .*'PredictorReady': 'True'.* of images that nobody can pull"),
        (Behaviour(failing=True), None, "KServe refuses it: .*BlockedByFailedLoad"),
        (Behaviour(waiting="ErrImagePull"), mounts_twice, "KServe refuses it: .*must be unique"),
    ],
    ids=["ready whatever runs", "load failed", "pods refused"],
)
def test_a_written_service_finds_a_fault_of_kserve(
    kserve: tuple[RealCluster, KubeServer, Object],
    behaviour: Behaviour,
    spoil: Callable[[Object], None] | None,
    message: str,
) -> None:
    cluster, kube, body = kserve
    kube.behaviour[body["metadata"]["name"]] = behaviour
    if spoil is not None:
        spoil(body)
    with pytest.raises(RowFailedError, match=message):
        acceptance.kserve_runs_a_written_service(cluster, body, wait_seconds=3)


def test_a_kserve_that_omits_a_component_status_fails_its_row(
    kserve: tuple[RealCluster, KubeServer, Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, kube, body = kserve
    monkeypatch.setattr(kube, "_service_status", lambda service: {})
    with pytest.raises(RowFailedError, match=r"'TransformerReady': 'Unknown'\} after 0.3 s"):
        acceptance.kserve_runs_a_written_service(cluster, body, wait_seconds=0.3)


def test_a_missing_right_of_an_account_fails_its_row() -> None:
    with bare_api.running() as server:
        cluster = RealCluster(client.ApiClient(client.Configuration(host=server.url)), "ml")
        assert wrong_rights(cluster, ["shortlist-rollout"]) == []
        server.denied.add(("shortlist-rollout", "create", "inferenceservices"))
        assert wrong_rights(cluster, ["shortlist-rollout"]) == [
            "shortlist-rollout create inferenceservices: is False, should be True"
        ]


def test_a_canary_that_is_rolled_back_for_want_of_traffic_is_no_proof(played: Played) -> None:
    played.world.serve(1)
    played.cluster.canary_deadline_seconds = 0.0
    with pytest.raises(RowFailedError, match="rolled back at its deadline, not when it was lost"):
        acceptance.a_canary_without_transformer_is_rolled_back(played.cluster)


def test_a_row_that_cannot_be_tried_gives_its_reason(played: Played) -> None:
    played.cluster.pipelines = played.cluster.post_alert = None
    for row, reason in ((acceptance.a_training_succeeds, "HOST=http"), (acceptance.a_forged_webhook_is_refused, "rec")):
        with pytest.raises(RowSkippedError, match=reason):
            row(played.cluster)
    lines: list[str] = []
    acceptance.run_rows(played.cluster, lines.append)
    assert [line.split()[0] for line in lines].count("skipped") == 5
