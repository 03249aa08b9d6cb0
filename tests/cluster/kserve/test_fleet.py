"""Versions and routes on a cluster: made once, never changed, never mixed up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from kserve_world import CLUSTER, DIGEST, World
from kube_server import Behaviour, Fault, KubeServer, Object

from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.kserve.fleet import has_ready_endpoint
from shortlist.rollout.kserve.objects.manifests import Version, inference_service
from shortlist.rollout.kserve.objects.owner import DIGEST_ANNOTATION, RELEASE_ANNOTATION
from shortlist.rollout.kserve.objects.published import model_key, release_key
from shortlist.rollout.kserve.servers.fetch import fetch
from shortlist.spec.cluster import Cluster, Images, Task
from shortlist.storage.artefacts import IntegrityError, folder_digest, write_manifest
from shortlist.system.kubernetes_api import ClusterError, ForeignError

SERVICES = "/apis/serving.kserve.io/v1beta1/namespaces/ml/inferenceservices"
ROLLOUT = "20261121-120000-demo-0000"
FIVE = Route(stable=1, canary=2, percent=5, rollout=ROLLOUT, step=0)
FIFTY = Route(stable=1, canary=2, percent=50, rollout=ROLLOUT, step=1)


def deploy_candidate(world: World) -> None:
    world.fleet().deploy(world.deployment(2))
    world.fleet().wait_ready(2)


def test_a_version_is_deployed_once_and_gets_its_share(world: World, kube: KubeServer) -> None:
    fleet = world.fleet()
    assert fleet.serving() == Route(stable=1)
    deploy_candidate(world)
    created = kube.object("InferenceService", world.name(2))
    deploy_candidate(world)
    assert kube.object("InferenceService", world.name(2)) == created  # asked twice, made once
    fleet.verify(2)
    fleet.route(FIVE)
    fleet.route(FIVE)
    assert len([sent_route for sent_route in kube.sent if f"{world.name(2)}-transformer" in sent_route.weights]) == 1
    assert kube.sent[-1].weights == {f"{world.name(1)}-transformer": 95, f"{world.name(2)}-transformer": 5}
    assert (fleet.serving(), kube.wrong) == (FIVE, [])


def test_every_share_of_the_users_is_marked_as_envoy_marks_it_on_one_machine(world: World, kube: KubeServer) -> None:
    deploy_candidate(world)
    world.fleet().route(FIVE)
    canary = next(
        backend_filter
        for backend_filter in kube.sent[-1].headers
        if backend_filter["name"] == f"{world.name(2)}-transformer"
    )
    (backend_filter,) = canary["filters"]
    request_headers = {header["name"]: header["value"] for header in backend_filter["requestHeaderModifier"]["set"]}
    marks = {"x-shortlist-track": "canary", "x-shortlist-version": "2"}
    assert request_headers == marks | {"x-shortlist-rollout": ROLLOUT, "x-shortlist-step": "0"}


def test_a_version_without_users_gets_none_before_it_is_ready(world: World, kube: KubeServer) -> None:
    kube.behaviour[world.name(2)] = Behaviour(ready_after=1_000)
    world.fleet().deploy(world.deployment(2))
    with pytest.raises(ClusterError, match=r"demo-v2-.*-transformer: not ready, so nobody is sent there"):
        world.fleet().route(FIVE)
    assert world.fleet().serving() == Route(stable=1)


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (Behaviour(transformer_after=1_000), "TransformerReady is False"),
        (Behaviour(replicas={"predictor": 0, "transformer": 1}), "demo-v2-.*-predictor: no ready endpoint"),
        (Behaviour(replicas={"predictor": 1, "transformer": 0}), "demo-v2-.*-transformer: no ready endpoint"),
    ],
)
def test_a_version_that_kserve_calls_ready_and_that_cannot_answer_is_not_ready(
    kube: KubeServer, tmp_path: Path, behaviour: Behaviour, message: str
) -> None:
    world = World(tmp_path, kube.url, ready_seconds=0.2)
    world.serve(1)
    kube.behaviour[world.name(2)] = behaviour
    world.fleet().deploy(world.deployment(2))
    conditions = kube.answer("GET", f"{SERVICES}/{world.name(2)}", None)["status"]["conditions"]
    assert {"type": "Ready", "status": "True"} in conditions  # as KServe has it
    with pytest.raises(ClusterError, match=rf"is not ready after 0.2 s; the cluster says:\n.*{message}"):
        world.fleet().wait_ready(2)
    assert not world.fleet().health(2).ready
    with pytest.raises(ClusterError, match="not ready, so nobody is sent there"):
        world.fleet().route(FIVE)


@pytest.mark.parametrize(
    ("endpoints", "is_ready"),
    [
        (None, False),
        ([], False),
        ([{"addresses": ["10.0.0.1"], "conditions": {"ready": False}}], False),
        ([{"addresses": ["10.0.0.1"], "conditions": {"ready": False}}, {"conditions": {"ready": True}}], True),
        ([{"addresses": ["10.0.0.1"]}], True),  # unknown counts as ready
    ],
)
def test_endpoints_are_read_from_kubernetes_endpoint_slices(endpoints: list[Object] | None, is_ready: bool) -> None:
    assert has_ready_endpoint({"endpoints": endpoints}) == is_ready


def test_a_version_that_does_not_become_ready_says_what_the_cluster_says(kube: KubeServer, tmp_path: Path) -> None:
    world = World(tmp_path, kube.url, ready_seconds=0.3)
    kube.behaviour[world.name(2)] = Behaviour(ready_after=1_000)
    kube.events = [event(world.name(2), "FailedScheduling", "0/3 nodes are available: 3 Insufficient cpu")]
    world.fleet().deploy(world.deployment(2))
    with pytest.raises(ClusterError) as caught:
        world.fleet().wait_ready(2)
    assert "is not ready after 0.3 s; the cluster says:" in str(caught.value)
    assert "PredictorReady is False: Deployment waiting for pods" in str(caught.value)
    assert "event FailedScheduling: 0/3 nodes are available: 3 Insufficient cpu" in str(caught.value)


def test_a_version_that_never_will_be_ready_is_not_waited_for(world: World, kube: KubeServer) -> None:
    kube.behaviour[world.name(2)] = Behaviour(failing=True)
    world.fleet().deploy(world.deployment(2))
    with pytest.raises(ClusterError, match=r"never becomes ready(.|\n)*digest differs(.|\n)*CrashLoopBackOff"):
        world.fleet().wait_ready(2)
    health = world.fleet().health(2)
    assert (health.ready, health.fatal) == (False, ("kserve-container",))


def test_an_image_that_cannot_be_pulled_is_named_at_once(world: World, kube: KubeServer) -> None:
    """And not when the time is over that images of gigabytes may take: then the version "is not ready after" it."""
    kube.behaviour[world.name(2)] = Behaviour(waiting="ErrImagePull")
    fleet = world.fleet()
    fleet.deploy(world.deployment(2))
    with pytest.raises(ClusterError, match=r"never becomes ready(?s:.*)kserve-container: ErrImagePull: as the test"):
        fleet.wait_ready(2)


def test_a_version_that_is_being_deleted_is_made_anew(world: World, kube: KubeServer) -> None:
    deploy_candidate(world)
    kube.behaviour[world.name(2)] = Behaviour(gone_after=0.4)
    object_before = kube.object("InferenceService", world.name(2))["metadata"]["uid"]
    world.fleet().retire(2)
    deploy_candidate(world)
    assert kube.object("InferenceService", world.name(2))["metadata"]["uid"] != object_before


class TestRelease:
    """What is released with a model: sources, filters and ordering."""

    @pytest.fixture
    def released(self, world: World, tmp_path: Path) -> Deployment:
        return self.with_release(world, tmp_path / "release", "popular")

    def with_release(self, world: World, folder: Path, content: str) -> Deployment:
        folder.mkdir()
        (folder / "slates.json").write_text(f'{{"filters": "{content}"}}')
        write_manifest(folder)
        changes = {"release": folder, "release_digest": folder_digest(folder)}
        return world.deployment(2).model_copy(update=changes)

    def key(self, world: World, deployment: Deployment) -> str:
        return release_key(world.fleet().owner, 2, deployment.digest, deployment.release_digest)

    def test_it_is_published_with_the_version_and_fetched_by_its_pods(
        self, world: World, kube: KubeServer, released: Deployment, tmp_path: Path
    ) -> None:
        fleet = world.fleet()
        fleet.deploy(released)
        fleet.deploy(released)
        fleet.verify(2)
        created = kube.object("InferenceService", world.name(2))
        assert created["metadata"]["annotations"][RELEASE_ANNOTATION] == released.release_digest
        transformer_spec = created["spec"]["transformer"]["initContainers"][1]["args"]
        key, digest = (
            transformer_spec[transformer_spec.index("--key") + 1],
            transformer_spec[transformer_spec.index("--digest") + 1],
        )
        fetched = fetch(world.objects, key, digest, tmp_path / "pod" / "release")
        assert folder_digest(fetched) == released.release_digest == digest

    def test_published_files_that_were_replaced_end_the_rollout(
        self, world: World, kube: KubeServer, released: Deployment, tmp_path: Path
    ) -> None:
        world.fleet().deploy(released)
        key = self.key(world, released)
        with pytest.raises(IntegrityError, match=rf"but this pod serves {'0' * 16}; nothing is started"):
            fetch(world.objects, key, "0" * 16, tmp_path / "pod")
        world.objects.write(f"{key}/extra.json", b"{}")
        with pytest.raises(IntegrityError, match=r"'extra.json' is missing or was added; published folders never"):
            world.fleet().verify(2)

    def test_a_folder_that_was_changed_is_not_published(
        self, world: World, kube: KubeServer, released: Deployment
    ) -> None:
        assert released.release is not None
        (released.release / "slates.json").write_text("{}")
        write_manifest(released.release)
        with pytest.raises(IntegrityError, match=rf"release: digest .*, but {released.release_digest} was blessed"):
            world.fleet().deploy(released)
        assert kube.named("InferenceService") == [world.name(1)]

    def test_a_version_that_serves_another_release_is_refused(
        self, world: World, kube: KubeServer, released: Deployment, tmp_path: Path
    ) -> None:
        world.fleet().deploy(released)
        other_release = self.with_release(world, tmp_path / "other", "other")
        with pytest.raises(IntegrityError, match=rf"serves release '{released.release_digest}', and version 2 has"):
            world.fleet().deploy(other_release)


def test_retiring_twice_or_what_never_was_does_no_harm(world: World, kube: KubeServer) -> None:
    deploy_candidate(world)
    for version in (2, 2, 7):
        world.fleet().retire(version)
    assert kube.named("InferenceService") == [world.name(1)]


def test_a_version_with_users_is_not_retired(world: World, kube: KubeServer) -> None:
    with pytest.raises(ClusterError, match="users are still sent to it; it stays"):
        world.fleet().retire(1)
    assert kube.named("InferenceService") == [world.name(1)]


def test_nobody_is_sent_anywhere_after_the_first_model_was_taken_back(world: World, kube: KubeServer) -> None:
    world.fleet().withdraw()
    world.fleet().withdraw()
    assert (world.fleet().serving(), kube.named("HTTPRoute")) == (None, [])


# --- refused


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (Images(pipeline=f"a@{DIGEST}", triton="triton:26"), r"images\.triton: got 'triton:26'; wanted it by digest"),
        (Images(pipeline="shortlist:latest", triton=f"b@{DIGEST}"), r"images\.pipeline: got 'shortlist:latest'"),
        (Images(pipeline=f"a@{DIGEST}"), r"images\.triton: no image is declared"),
    ],
)  # fmt: skip
def test_an_image_without_digest_is_refused_before_anything_is_created(
    kube: KubeServer, tmp_path: Path, images: Images, message: str
) -> None:
    world = World(tmp_path, kube.url, cluster=CLUSTER.model_copy(update={"images": images}))
    with pytest.raises(ClusterError, match=message):
        world.fleet().deploy(world.deployment(2))
    assert (kube.named("InferenceService"), world.objects.keys("versions/")) == ([], [])


def test_a_version_that_is_there_stays_though_the_spec_names_its_image_otherwise_now(
    world: World, kube: KubeServer
) -> None:
    """A way back must not fail because somebody edited the spec meanwhile."""
    images = Images(pipeline="shortlist:latest", triton="triton:latest")
    later_world = World(world.folder, kube.url, cluster=CLUSTER.model_copy(update={"images": images}))
    later_world.fleet().deploy(later_world.deployment(1))
    later_world.fleet().verify(1)


def test_image_tags_are_accepted_where_the_spec_allows_tags(kube: KubeServer, tmp_path: Path) -> None:
    images = Images(pipeline="shortlist:1", triton="triton:1", allow_tags=True)
    world = World(tmp_path, kube.url, cluster=CLUSTER.model_copy(update={"images": images}))
    world.fleet().deploy(world.deployment(2))
    assert kube.named("InferenceService") == [world.name(2)]


def test_an_exceeded_quota_is_an_error_that_leaves_no_object(world: World, kube: KubeServer) -> None:
    quota = "exceeded quota: models, requested: count/inferenceservices=1, used: 1, limited: 1"
    kube.faults = [Fault("403", "POST", "inferenceservices", message=quota)]
    with pytest.raises(ClusterError, match=rf"refused \(403\): {quota}"):
        world.fleet().deploy(world.deployment(2))
    assert kube.named("InferenceService") == [world.name(1)]


def test_two_clusters_never_touch_each_others_objects(world: World, kube: KubeServer) -> None:
    """The same namespace, the same spec, another `runtime.cluster.name`: a wrong kubectl context, most often."""
    object_before = kube.object("HTTPRoute", "shortlist-demo")
    other_world = World(world.folder, kube.url, cluster=CLUSTER.model_copy(update={"name": "us-1"}))
    for call in (
        other_world.fleet().serving,
        other_world.fleet().withdraw,
        lambda: other_world.fleet().route(Route(stable=1)),
        lambda: other_world.fleet().retire(1),
        lambda: other_world.fleet().deploy(other_world.deployment(1)),
    ):
        with pytest.raises(ForeignError, match="belongs to cluster 'eu-1', spec 'demo', and this is cluster 'us-1'"):
            call()
    assert kube.object("HTTPRoute", "shortlist-demo") == object_before


def test_two_clusters_that_share_a_prefix_notice(world: World, kube: KubeServer) -> None:
    other_world = World(
        world.folder, kube.url, cluster=CLUSTER.model_copy(update={"name": "us-1", "namespace": "other"})
    )
    with pytest.raises(ForeignError, match="was published by cluster 'eu-1', and this is cluster 'us-1'"):
        other_world.fleet().deploy(other_world.deployment(1))


def test_a_route_that_somebody_else_made_is_left_alone(world: World, kube: KubeServer) -> None:
    world.fleet().withdraw()
    foreign_route = {
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": "shortlist-demo", "namespace": "ml"},
        "spec": {"rules": [{"backendRefs": [{"name": "theirs", "port": 80, "weight": 1, "filters": [{}, {}]}]}]},
    }  # fmt: skip
    kube.put_object(foreign_route)
    object_before = kube.object("HTTPRoute", "shortlist-demo")
    for call in (world.fleet().serving, world.fleet().withdraw, lambda: world.fleet().route(Route(stable=1))):
        with pytest.raises(ForeignError, match="was not made by Shortlist and is left alone"):
            call()
    assert kube.object("HTTPRoute", "shortlist-demo") == object_before


def test_a_gateway_that_does_not_take_the_route_is_an_error(world: World, kube: KubeServer) -> None:
    deploy_candidate(world)
    kube.takes_routes = False
    with pytest.raises(
        ClusterError, match=r"the gateway has not taken it after 1 s: Accepted is False: NoMatchingParent"
    ):
        world.fleet().route(FIVE)


# --- somebody else at the same object


def test_a_controller_that_writes_annotations_is_no_reason_to_stop(world: World, kube: KubeServer) -> None:
    deploy_candidate(world)
    kube.faults = [Fault("conflict", "PUT", "httproutes", times=2)]
    world.fleet().route(FIVE)
    route = kube.object("HTTPRoute", "shortlist-demo")
    assert route["metadata"]["annotations"]["touched"] == "yes"  # theirs is kept
    assert [method for method, path in kube.requests if "httproutes" in path].count("PUT") == 3
    assert world.fleet().serving() == FIVE


def test_a_route_that_somebody_moved_by_hand_is_not_overwritten(world: World, kube: KubeServer) -> None:
    deploy_candidate(world)
    world.fleet().route(FIVE)
    kube.edit("HTTPRoute", "shortlist-demo", swap_weights)
    object_before = kube.object("HTTPRoute", "shortlist-demo")
    for call in (
        world.fleet().serving,
        lambda: world.fleet().route(FIFTY),
        lambda: world.fleet().route(Route(stable=2)),
    ):
        with pytest.raises(ForeignError, match=r"somebody else changed it \(now: .*; asked for: 5 % at version 2"):
            call()
    assert kube.object("HTTPRoute", "shortlist-demo") == object_before


def test_a_rollback_is_allowed_after_foreign_changes(world: World, kube: KubeServer) -> None:
    deploy_candidate(world)
    world.fleet().route(FIVE)
    kube.edit("HTTPRoute", "shortlist-demo", swap_weights)
    world.fleet().route(Route(stable=1))
    assert kube.sent[-1].weights == {f"{world.name(1)}-transformer": 100}


def test_a_change_between_reading_and_writing_is_a_conflict(world: World, kube: KubeServer) -> None:
    """The conflict is somebody's other weights: reading again shows them, and nothing is overwritten."""
    deploy_candidate(world)
    world.fleet().route(FIVE)
    moved: list[str] = []

    def by_hand(method: str, path: str) -> None:
        if method == "PUT" and not moved:
            moved.append(path)
            kube.edit("HTTPRoute", "shortlist-demo", swap_weights)

    kube.on_request = by_hand
    with pytest.raises(ForeignError, match="somebody else changed it"):
        world.fleet().route(FIFTY)
    assert moved


# --- an API that fails


@pytest.mark.parametrize("operation", ["500", "503", "429", "lost before", "lost after"])
def test_a_transient_fault_has_no_effect(world: World, kube: KubeServer, operation: str) -> None:
    for method, path in (("POST", "inferenceservices"), ("GET", "inferenceservices"), ("PUT", "httproutes")):
        kube.faults.append(Fault(operation, method, path))
    deploy_candidate(world)
    world.fleet().route(FIVE)
    assert (world.fleet().serving(), kube.wrong) == (FIVE, [])
    assert kube.named("InferenceService") == sorted([world.name(1), world.name(2)])
    kube.faults = [Fault(operation, "DELETE", "inferenceservices")]
    world.fleet().route(Route(stable=1))
    world.fleet().retire(2)
    assert kube.named("InferenceService") == [world.name(1)]


def test_an_api_that_is_away_for_less_than_the_patience_is_waited_for(world: World, kube: KubeServer) -> None:
    deploy_candidate(world)
    kube.down(1.0)
    world.fleet().route(FIVE)
    assert world.fleet().serving() == FIVE


def test_an_api_that_is_away_for_longer_is_a_clear_error(world: World, kube: KubeServer) -> None:
    deploy_candidate(world)
    impatient = World(world.folder, kube.url, patience=0.5)
    kube.down(60)
    with pytest.raises(ClusterError, match=r"did not answer for 0\.5 s .*Users' routes stay as they were") as caught:
        impatient.fleet().route(FIVE)
    assert kube.url in str(caught.value)
    kube.down(0)
    assert world.fleet().serving() == Route(stable=1)


def test_an_invalid_object_is_not_retried(world: World, kube: KubeServer) -> None:
    kube.faults = [Fault("422", "POST", "inferenceservices", message="spec.predictor: Invalid value", times=9)]
    with pytest.raises(ClusterError, match=r"refused \(422\): spec.predictor: Invalid value"):
        world.fleet().deploy(world.deployment(2))
    assert kube.faults[0].times == 8


# --- what is served is what was judged


def test_files_replaced_in_the_bucket_are_detected(world: World, kube: KubeServer) -> None:
    deploy_candidate(world)
    fleet, deployment = world.fleet(), world.deployment(2)
    key = model_key(fleet.owner, 2, deployment.digest)
    fleet.verify(2)
    world.objects.write(f"{key}/added.txt", b"x")
    with pytest.raises(IntegrityError, match=r"'added.txt' is missing or was added"):
        fleet.verify(2)


def test_a_record_replaced_in_the_bucket_is_detected(world: World, kube: KubeServer) -> None:
    deploy_candidate(world)
    fleet, deployment = world.fleet(), world.deployment(2)
    key = model_key(fleet.owner, 2, deployment.digest)
    record = json.loads(world.objects.read(f"{key}/published.json") or b"")
    record["sha256"]["model.json"] = "0" * 64
    world.objects.write(f"{key}/published.json", json.dumps(record).encode())
    with pytest.raises(IntegrityError, match=r"but .* was deployed; somebody replaced it"):
        fleet.verify(2)


def test_a_pod_refuses_files_with_another_digest(world: World, tmp_path: Path) -> None:
    fleet = world.fleet()
    right = world.deployment(1).digest
    key = model_key(fleet.owner, 1, right)
    assert fetch(world.objects, key, right, tmp_path / "pod/model") == tmp_path / "pod/model"
    with pytest.raises(IntegrityError, match=r"but this pod serves 0000; nothing is started"):
        fetch(world.objects, key, "0000", tmp_path / "other/model")


def test_a_version_that_somebody_edited_is_not_routed_to(world: World, kube: KubeServer) -> None:
    deploy_candidate(world)
    kube.edit(
        "InferenceService",
        world.name(2),
        lambda live: live["spec"]["predictor"]["containers"][0].update(image="evil:1"),
    )
    with pytest.raises(IntegrityError, match="somebody changed it since it was made"):
        world.fleet().verify(2)


def test_a_version_with_another_digest_is_not_adopted(world: World, kube: KubeServer) -> None:
    deploy_candidate(world)
    kube.edit("InferenceService", world.name(2), lambda live: annotate(live, DIGEST_ANNOTATION, "f" * 16))
    with pytest.raises(IntegrityError, match="serves digest ffffffffffffffff, and version 2 has digest"):
        world.fleet().deploy(world.deployment(2))
    with pytest.raises(IntegrityError, match="its digest was changed to ffffffffffffffff"):
        world.fleet().verify(2)


def test_a_model_folder_that_changed_after_it_was_judged_is_not_published(world: World, kube: KubeServer) -> None:
    deployment = world.deployment(2)
    (deployment.model_folder / "model.json").write_text("{}")
    with pytest.raises(IntegrityError, match="changed after it was written"):
        world.fleet().deploy(deployment)
    assert kube.named("InferenceService") == [world.name(1)]


def annotate(live: Object, name: str, value: str) -> None:
    live["metadata"]["annotations"][name] = value


def swap_weights(route: Object) -> None:
    for backend in route["spec"]["rules"][0]["backendRefs"]:
        backend["weight"] = 100 - backend["weight"] if backend["weight"] in (5, 95) else 50


def event(name: str, reason: str, message: str) -> Object:
    return {
        "metadata": {"name": f"{name}.1", "namespace": "ml"}, "involvedObject": {"name": name}, "type": "Warning",
        "reason": reason, "message": message, "lastTimestamp": "2026-11-21T12:00:00Z",
    }  # fmt: skip


# --- what a real cluster does and a schema does not say


def model_of(spec: Object) -> Object:
    """Turn the predictor's container into the `model` that it was."""
    (container,) = spec["predictor"].pop("containers")
    spec["predictor"]["model"] = {
        "modelFormat": {"name": "triton"}, **{name: container[name] for name in ("image", "volumeMounts")},
    }  # fmt: skip
    model: Object = spec["predictor"]["model"]
    return model


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda spec: model_of(spec).update(name="kserve-container"), "the 'name' field is not allowed in standard"),
        (lambda spec: spec["predictor"].update(model={"modelFormat": {"name": "triton"}}), "exactly one of"),
        (lambda spec: spec["predictor"].update(minReplicas=3), "MinReplicas cannot be greater than MaxReplicas"),
    ],
)
def test_kserves_webhook_refuses(
    world: World, kube: KubeServer, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Object], object], message: str
) -> None:
    written_with(monkeypatch, spoil)
    with pytest.raises(ClusterError, match=rf"refused \(403\): admission webhook .* denied the request: .*{message}"):
        world.fleet().deploy(world.deployment(2))
    posts = [path for method, path in kube.requests if method == "POST" and "inferenceservices" in path]
    assert len(posts) == 2  # version 1, and version 2 once: what a webhook denies is not asked for again


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (model_of, r"mountPath: Invalid value: \"/mnt/models\": must be unique"),
        (
            lambda spec: spec["predictor"]["containers"][0].update(name="triton"),
            "no container is named kserve-container",
        ),
        (
            lambda spec: spec["predictor"].update(tolerations=[{"key": "gpu", "operator": "Exists", "value": "a"}]),
            "value must be empty when `operator` is 'Exists'",
        ),
    ],
)
def test_pods_that_kubernetes_refuses_never_become_ready(
    kube: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Object], object], message: str
) -> None:
    world = World(tmp_path, kube.url, ready_seconds=0.2)
    written_with(monkeypatch, spoil)
    world.fleet().deploy(world.deployment(2))
    with pytest.raises(ClusterError, match=message):
        world.fleet().wait_ready(2)


def test_quantities_that_the_cluster_writes_otherwise_are_no_change(kube: KubeServer, tmp_path: Path) -> None:
    serving = Task.model_construct(**{**Task().model_dump(), "cpu": "0.5", "memory": "1.5Gi"})  # as an old release says
    scaling = CLUSTER.autoscaling.model_copy(update={"queue_milliseconds": 0.5})
    world = World(tmp_path, kube.url, cluster=CLUSTER.model_copy(update={"serving": serving, "autoscaling": scaling}))
    world.serve(1)
    world.fleet().verify(1)
    live = kube.object("InferenceService", world.name(1))["spec"]["predictor"]["containers"][0]["resources"]
    assert live["limits"] == {"cpu": "500m", "memory": "1536Mi"}
    kube.edit("InferenceService", world.name(1), lambda live: limits_of(live).update(cpu="600m"))
    with pytest.raises(IntegrityError, match="somebody changed it since it was made"):
        world.fleet().verify(1)


def test_a_version_that_is_being_deleted_gets_no_more_users(world: World, kube: KubeServer) -> None:
    """A finalizer takes its time; meanwhile KServe's status still says Ready."""
    deploy_candidate(world)
    world.fleet().route(FIVE)
    kube.edit("InferenceService", world.name(2), lambda live: live["metadata"].update(deletionTimestamp="2026-11-21"))
    assert not world.fleet().health(2).ready
    with pytest.raises(ClusterError, match=r"demo-v2-.*-transformer: not ready, so its share stays at 5 %"):
        world.fleet().route(FIFTY)
    with pytest.raises(
        ClusterError, match=r"never becomes ready(.|\n)*somebody is deleting the InferenceService since"
    ):
        world.fleet().wait_ready(2)
    assert (kube.sent[-1].weights[f"{world.name(2)}-transformer"], kube.wrong) == (5, [])
    world.fleet().route(Route(stable=1))


def test_everybody_goes_back_even_to_a_stable_version_that_is_not_ready(world: World, kube: KubeServer) -> None:
    deploy_candidate(world)
    world.fleet().route(FIFTY)
    kube.behaviour[world.name(1)] = Behaviour(ready_after=1_000)
    world.fleet().route(Route(stable=1))
    assert (kube.sent[-1].weights, kube.wrong) == ({f"{world.name(1)}-transformer": 100}, [])


def test_an_api_server_that_restarts_is_waited_for(world: World, kube: KubeServer) -> None:
    """Away, then 403 until its caches of roles are filled, then 503."""
    deploy_candidate(world)
    kube.restart(away=0.2, starting=0.5)
    world.fleet().route(FIVE)
    assert (world.fleet().serving(), kube.wrong) == (FIVE, [])


def test_an_account_without_the_right_is_told_so_after_a_while(kube: KubeServer, tmp_path: Path) -> None:
    world = World(tmp_path, kube.url, settling=0.2, account="shortlist-server")
    with pytest.raises(ClusterError, match=r"refused \(403\): .*cannot list.*accounts\.yaml says which rights"):
        world.fleet().deploy(world.deployment(1))
    assert len(kube.forbidden) > 1


@pytest.mark.parametrize("hold", [15, 70, 3600, 200_000])
def test_a_long_hold_is_a_duration_that_the_gateway_takes(kube: KubeServer, tmp_path: Path, hold: float) -> None:
    world = World(tmp_path, kube.url, hold_seconds=hold)
    world.serve(1)
    assert world.fleet().serving() == Route(stable=1)


def limits_of(service: Object) -> Object:
    limits: Object = service["spec"]["predictor"]["containers"][0]["resources"]["limits"]
    return limits


def written_with(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Object], object]) -> None:
    """Have manifests written wrongly."""

    def spoilt(version: Version, cluster: Cluster) -> Object:
        created = inference_service(version, cluster)
        if version.version == 2:
            spoil(created["spec"])
        return created

    monkeypatch.setattr("shortlist.rollout.kserve.fleet.inference_service", spoilt)
