"""What a rollout writes fits the published schemas of KServe and the Gateway API; what is wrong does not."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crd_schemas import problems
from kserve_rules import scaled_object
from kserve_world import CLUSTER, DIGEST
from kube_server import Object

from shortlist.features.online_stores.redis import RedisOnline
from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.kserve.objects.manifests import Version, inference_service
from shortlist.rollout.kserve.objects.owner import RELEASE_ANNOTATION, SPEC_ANNOTATION, ObjectOwner, contains
from shortlist.rollout.kserve.objects.routing import PLACES, SHARES, http_route, shares, weights_by_service
from shortlist.rollout.kserve.servers.settings import VARIABLE, server_settings, settings_in_pod
from shortlist.serving.log.committer import _arguments
from shortlist.serving.server.runtime.settings import SERVER_ENVIRONMENT
from shortlist.spec.cluster import Autoscaling, Cluster, Secret, Task, Toleration
from shortlist.spec.serving import Serving
from shortlist.storage.storage_config import StorageConfig
from shortlist.system.kubernetes_api import ClusterError

OWNER = ObjectOwner(cluster="eu-1", namespace="ml", spec="demo")
FULL = CLUSTER.model_copy(
    update={
        "secrets": (Secret(name="stores", variables={"SHORTLIST_DATABASE": "database"}),),
        "hostname": "rank.example.org",
        "serving": Task(
            cpu="4", memory="8Gi", gpus=1, node_selector={"pool": "gpu"},
            tolerations=(Toleration(key="nvidia.com/gpu", effect="NoSchedule"),),
        ),
    }
)  # fmt: skip
ROUTES = (
    Route(stable=4),
    Route(stable=4, canary=5, percent=5, rollout="20261121-120000-demo-0000", step=0),
    Route(stable=4, canary=5, percent=100, rollout="20261121-120000-demo-0000", step=3),
)


def version(**changes: Any) -> Version:
    deployment = Deployment(version=5, kind="dlrm", model_folder="/model", digest="0123456789abcdef",
        store=StorageConfig(
        cluster="eu-1", objects="s3://models/shortlist", tracking_variable="MLFLOW_TRACKING_URI",
        database_variable="SHORTLIST_DATABASE",
    ))  # fmt: skip
    settings = server_settings("demo", deployment, Serving(), RedisOnline(kind="redis"))
    fields = {"owner": OWNER, "version": 5, "digest": deployment.digest, "repository": "f" * 16,
             "source": "s3://models/shortlist", "settings": settings}  # fmt: skip
    return Version.model_validate({**fields, **changes})


def route(wanted_route: Route, cluster: Cluster = FULL) -> Object:
    return http_route(OWNER, cluster, wanted_route, {4: "demo-v4-aaaaaaaa", 5: "demo-v5-bbbbbbbb"}, hold_seconds=15)


@pytest.mark.parametrize("cluster", [CLUSTER, FULL])
def test_the_inference_service_fits_kserves_schema(cluster: Cluster) -> None:
    assert problems(inference_service(version(), cluster)) == []


@pytest.mark.parametrize("milliseconds", [0.25, 5, 1_000])
def test_keda_reads_the_scaled_objects_of_kserve(milliseconds: float) -> None:
    """KEDA's Prometheus scaler reads its threshold as a number: 500m or 1k, as Kubernetes writes them, is none."""
    cluster = CLUSTER.model_copy(update={"autoscaling": Autoscaling(queue_milliseconds=milliseconds)})
    service = inference_service(version(), cluster)
    by_component = {name: scaled_object(service, name) for name in ("predictor", "transformer")}
    assert [problem for scaled in by_component.values() for problem in problems(scaled)] == []
    (queue,) = (trigger for trigger in by_component["predictor"]["spec"]["triggers"] if trigger["type"] == "prometheus")
    assert float(queue["metadata"]["threshold"]) == milliseconds
    assert queue["metadata"]["serverAddress"] == cluster.prometheus
    cpu = {"type": "cpu", "metadata": {"value": "70"}, "metricType": "Utilization"}
    assert by_component["transformer"]["spec"]["triggers"] == [cpu]


def test_the_log_of_a_pod_is_less_than_ten_thousand_files_a_day() -> None:
    (committer,) = (
        container
        for container in inference_service(version(), CLUSTER)["spec"]["transformer"]["containers"]
        if container["name"] == "log-committer"
    )
    assert 24 * 3600 / _arguments().parse_args(committer["args"]).commit_seconds < 10_000


def test_a_pod_that_fills_its_disk_is_evicted_before_its_node_is_full() -> None:
    """The prediction log grows with traffic; scratch space with whatever a program writes there."""
    cluster = CLUSTER.model_copy(update={"log_volume": "3Gi"})
    for part in inference_service(version(), cluster)["spec"].values():
        limits = {volume["name"]: volume["emptyDir"].get("sizeLimit") for volume in part["volumes"]}
        assert limits["log"] == "3Gi"
        assert re.fullmatch(r"\d+[MG]i", limits["tmp"])


@pytest.mark.parametrize("wanted_route", ROUTES)
def test_the_route_fits_the_gateway_apis_schema(wanted_route: Route) -> None:
    assert problems(route(wanted_route)) == []


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda spec: spec["predictor"].update(minReplica=1), "minReplica"),
        (lambda spec: spec["predictor"]["containers"][0].update(image=7), "7 is not of type 'string'"),
        (lambda spec: spec["transformer"]["containers"][0].pop("name"), "'name' is a required property"),
        (lambda spec: spec.update(canaryTraffic=5), "canaryTraffic"),
    ],
)
def test_an_inference_service_that_is_wrong_does_not_fit(spoil: Callable[[Any], object], message: str) -> None:
    body = inference_service(version(), FULL)
    spoil(body["spec"])
    assert message in "; ".join(problems(body))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda rule: rule["backendRefs"][0].update(weights=5), "weights"),
        (lambda rule: rule["backendRefs"][0].update(weight=-1), "-1 is less than the minimum of 0"),
        (lambda rule: rule["matches"][0].update(method="FETCH"), "'FETCH' is not one of"),
        (lambda rule: rule["timeouts"].update(request="45"), "'45' does not match"),
    ],
)
def test_a_route_that_is_wrong_does_not_fit(spoil: Callable[[Any], object], message: str) -> None:
    body = route(ROUTES[1])
    spoil(body["spec"]["rules"][0])
    assert message in "; ".join(problems(body))


def test_nothing_runs_with_rights_or_without_limits() -> None:
    spec = inference_service(version(), FULL)["spec"]
    for pod in (spec["predictor"], spec["transformer"]):
        assert (pod["automountServiceAccountToken"], pod["securityContext"]["runAsNonRoot"]) == (False, True)
        for container in (*pod["initContainers"], *pod["containers"]):
            security, resources = container["securityContext"], container["resources"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert not security["allowPrivilegeEscalation"]
            assert resources["limits"] == resources["requests"]
            assert re.fullmatch(r"registry/(shortlist|triton)@" + DIGEST, container["image"])


def test_every_container_of_ours_gets_the_declared_variables() -> None:
    cluster = FULL.model_copy(update={"variables": {"AWS_ENDPOINT_URL": "https://s3.example.com"}})
    spec = inference_service(version(), cluster)["spec"]
    containers = [*spec["transformer"]["containers"], *spec["transformer"]["initContainers"]]
    for container in (*containers, *spec["predictor"]["initContainers"]):  # Triton itself asks no store
        assert {"name": "AWS_ENDPOINT_URL", "value": "https://s3.example.com"} in container["env"]


def test_gpus_go_to_triton_alone() -> None:
    spec = inference_service(version(), FULL)["spec"]
    assert spec["predictor"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    other_containers = [*spec["transformer"]["containers"], *spec["predictor"]["initContainers"]]
    assert [
        container["name"] for container in other_containers if "nvidia.com/gpu" in container["resources"]["limits"]
    ] == []


def test_every_pod_verifies_its_files_before_anything_starts() -> None:
    spec = inference_service(version(), FULL)["spec"]
    predictor, transformer = (spec[name]["initContainers"][0]["args"] for name in ("predictor", "transformer"))
    key = "versions/demo/v5-0123456789abcdef"
    assert predictor[:4] == ["--source", "s3://models/shortlist", "--key", f"{key}/repository-{'f' * 16}"]
    assert predictor[4:6] == ["--digest", "f" * 16]
    assert transformer[2:6] == ["--key", f"{key}/model", "--digest", "0123456789abcdef"]


@pytest.mark.parametrize("cluster", [CLUSTER, FULL])
def test_a_release_is_verified_beside_the_model_and_fits_the_schema(cluster: Cluster) -> None:
    released = version(release="a" * 16)
    service = inference_service(released, cluster)
    assert problems(service) == []
    assert service["metadata"]["annotations"][RELEASE_ANNOTATION] == "a" * 16
    of_model, of_release = service["spec"]["transformer"]["initContainers"]
    assert (of_model["name"], of_release["name"]) == ("verify", "verify-release")
    key = f"versions/demo/v5-0123456789abcdef/release-{'a' * 16}"
    assert of_release["args"][2:] == ["--key", key, "--digest", "a" * 16, "--to", "/mnt/shortlist/release"]
    assert len(service["spec"]["predictor"]["initContainers"]) == 1  # Triton only scores
    assert len(inference_service(version(), cluster)["spec"]["transformer"]["initContainers"]) == 1


def test_a_pods_server_recommends_where_there_is_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Deployment(version=5, kind="dlrm", model_folder="/model", digest="0" * 16, store=None)
    released = plain.model_copy(update={"release": Path("/release"), "release_digest": "a" * 16})
    for deployment, folder in ((plain, None), (released, Path("/mnt/shortlist/release"))):
        server_fields = server_settings("demo", deployment, Serving(), RedisOnline(kind="redis"))
        monkeypatch.setenv(VARIABLE, json.dumps(server_fields))
        assert settings_in_pod(["--predictor_host", "triton"]).release == folder


def test_requests_for_recommendations_are_split_like_those_for_scores() -> None:
    users, *named, asides = route(ROUTES[1])["spec"]["rules"]
    assert [route_match["path"]["value"] for route_match in users["matches"]] == [
        "/v2/models/demo/infer", "/v2/models/demo.recommend/infer", "/v1/rank", "/v1/recommend", "/v1/events",
    ]  # fmt: skip
    assert [len(route_match["matches"]) for route_match in named] == [2, 2]
    assert "/v2/models/demo.recommend" in [route_match["path"]["value"] for route_match in asides["matches"]]


def test_secrets_are_referenced_and_never_contained() -> None:
    text = json.dumps(inference_service(version(), FULL))
    reference = {"name": "SHORTLIST_DATABASE", "valueFrom": {"secretKeyRef": {"name": "stores", "key": "database"}}}
    assert json.dumps(reference) in text
    assert "postgresql://" not in text


def test_a_pods_server_reads_the_settings_of_its_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    container = inference_service(version(), FULL)["spec"]["transformer"]["containers"][0]
    settings_text = next(variable["value"] for variable in container["env"] if variable["name"] == VARIABLE)
    monkeypatch.setenv(VARIABLE, settings_text)
    # KServe adds these three (pkg/apis/serving/v1beta1/transformer_custom.go)
    host = "demo-v5-01234567-predictor.ml"
    added = ["--model_name", "demo-v5-01234567", "--predictor_host", host, "--http_port", "8080"]
    settings = settings_in_pod([*container["args"], *added])
    assert (settings.model, settings.version, settings.host) == ("demo", 5, "0.0.0.0")  # noqa: S104
    assert settings.predictor == "demo-v5-01234567-predictor.ml:80"
    assert settings.http_port == container["ports"][0]["containerPort"]
    assert isinstance(settings.store, StorageConfig)
    assert str(settings.model_folder) == "/mnt/shortlist/model"


@pytest.mark.parametrize(
    ("settings_text", "message"), [("", "is no JSON object"), ("[]", "is no JSON object"), ("{}", "model: ")]
)
def test_a_pod_without_valid_settings_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch, settings_text: str, message: str
) -> None:
    monkeypatch.setenv(VARIABLE, settings_text)
    with pytest.raises(ClusterError, match=rf"SHORTLIST_SERVER: .*{message}"):
        settings_in_pod(["--predictor_host", "here"])


def test_features_in_files_of_this_machine_are_refused() -> None:
    deployment = Deployment(version=5, kind="dlrm", model_folder="/model", digest="0" * 16, store="/runs/stores/feast")
    with pytest.raises(ClusterError, match="features are in files of this machine, and no pod sees them"):
        server_settings("demo", deployment, Serving(), RedisOnline(kind="redis"))


@pytest.mark.parametrize("spec", ["d", "demo", "a" * 41])
@pytest.mark.parametrize("number", [1, 123_456])
def test_names_leave_room_for_what_kserve_adds(spec: str, number: int) -> None:
    owner = ObjectOwner(cluster="c", namespace="shortlist-production", spec=spec)
    name = owner.version_name(number, "0123456789abcdef")
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert max(len(f"{name}-transformer"), len(f"{name}-{owner.namespace}")) <= 63


# --- who gets the canary


def places(wanted_route: Route) -> list[str]:
    """Return the track at each of the hundred places that a user's hash can have."""
    return [track for track, _, weight in shares(wanted_route) for _ in range(weight)]


@pytest.mark.parametrize("rollout", [f"2026112{day}-120000-demo-0000" for day in range(8)])
def test_users_of_the_canary_keep_it_while_its_share_grows(rollout: str) -> None:
    earlier_users: set[int] = set()
    for percent in (1, 5, 25, 50, 90, 100):
        positions = places(Route(stable=4, canary=5, percent=percent, rollout=rollout))
        canary = {place for place, track in enumerate(positions) if track == "canary"}
        assert (len(positions), len(canary)) == (SHARES, percent)
        assert earlier_users <= canary
        earlier_users = canary


def test_a_place_never_changes_its_track() -> None:
    """The gateway counts by place."""
    for percent in (0, 1, 5, 50, 99, 100):
        for number in range(50):
            tracks = [track for track, _, _ in shares(Route(stable=4, canary=5, percent=percent, rollout=f"r{number}"))]
            assert {
                track: tuple(i for i, backend_track in enumerate(tracks) if backend_track == track) for track in PLACES
            } == PLACES


def test_other_rollouts_have_other_canary_users() -> None:
    positions_by_rollout = [places(Route(stable=4, canary=5, percent=5, rollout=f"r{number}")) for number in range(400)]
    often = [sum(positions[place] == "canary" for positions in positions_by_rollout) for place in range(SHARES)]
    assert min(often) > 0  # everybody's turn comes: 5 % of 400 rollouts is 20
    assert max(often) < 60


def test_weights_always_add_up_and_carry_filters() -> None:
    for wanted_route in ROUTES:
        body = route(wanted_route)
        backends = body["spec"]["rules"][0]["backendRefs"]
        assert sum(weights_by_service(body).values()) == SHARES
        kinds = {tuple(backend_filter["type"] for backend_filter in backend["filters"]) for backend in backends}
        assert kinds == {("RequestHeaderModifier",)}  # clients are not told their track


def test_additions_of_the_cluster_are_allowed_but_changes_are_not() -> None:
    body = inference_service(version(), FULL)
    wanted_spec = json.loads(body["metadata"]["annotations"][SPEC_ANNOTATION])
    live = copy.deepcopy(body["spec"])
    live["predictor"]["containers"][0]["imagePullPolicy"] = "Always"
    assert contains(live, wanted_spec)
    live["transformer"]["containers"].append({"name": "extra"})
    assert not contains(live, wanted_spec)


def test_a_server_in_a_pod_has_the_environment_of_every_server() -> None:
    (server, *_) = inference_service(version(), FULL)["spec"]["transformer"]["containers"]
    server_environment = {variable["name"]: variable.get("value") for variable in server["env"]}
    assert SERVER_ENVIRONMENT.items() <= server_environment.items()
    assert server_environment["OPENBLAS_NUM_THREADS"] == "1"


def test_a_server_with_little_processor_time_is_not_restarted() -> None:
    """A probe of 3 s timed out at a quarter of a core, and imports take minutes there."""
    server = inference_service(version(), CLUSTER)["spec"]["transformer"]["containers"][0]
    startup, liveness = server["startupProbe"], server["livenessProbe"]
    assert startup["httpGet"] == liveness["httpGet"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600
    assert liveness["timeoutSeconds"] >= 10
    assert liveness["timeoutSeconds"] * liveness["failureThreshold"] >= 60
