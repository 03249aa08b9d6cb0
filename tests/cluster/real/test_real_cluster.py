"""Everything that is shipped or written, and rollouts with faults, against a real API server: `make test-cluster`.

With a bare API server the tests play KServe's controller and the gateway. With a full cluster the real webhooks and
definitions judge what is sent.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import kube_rbac
import pytest
import yaml
from acceptance import kserve_runs_a_written_service
from kserve_world import CLUSTER, Script, World
from kubernetes.client.exceptions import ApiException
from real_cluster import Gate, Object, PlayedControllers, RealCluster, eventually

from shortlist.rollout.deployment import Route
from shortlist.rollout.kserve.objects.manifests import Version, inference_service
from shortlist.rollout.kserve.objects.owner import ObjectOwner
from shortlist.rollout.kserve.objects.routing import http_route
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.states.phases import Phase
from shortlist.spec.cluster import Secret, Task, Toleration, Workers
from shortlist.system.kubernetes_api import HTTP_ROUTE, INFERENCE_SERVICE, ClusterError
from shortlist.training.distributed.train_job import train_job

ROOT = Path(__file__).parents[3]
K8S = ROOT / "deploy" / "k8s"
TASK = Task(
    cpu="0.5", memory="1.5Gi", gpus=1, node_selector={"pool": "gpu"},
    tolerations=(Toleration(key="nvidia.com/gpu", operator="Equal", value="a100", effect="NoSchedule"),),
)  # fmt: skip
FULL = CLUSTER.model_copy(
    update={
        "serving": TASK, "hostname": "rank.example.org",
        "secrets": (Secret(name="stores", variables={"SHORTLIST_DATABASE": "database"}),),
    }
)  # fmt: skip
RESOURCES = {
    "serving.kserve.io": ("inferenceservices",),
    "gateway.networking.k8s.io": ("httproutes",),
    "trainer.kubeflow.org": ("trainjobs",),
    "ray.io": ("rayjobs",),
    "argoproj.io": ("workflowtaskresults",),
    "pipelines.kubeflow.org": ("experiments", "pipelines", "runs", "jobs"),
    "apps": ("deployments",),
    "": ("pods", "events", "secrets", "configmaps", "serviceaccounts"),
}
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete")
ACCOUNTS = ("shortlist-rollout", "shortlist-pipeline", "shortlist-server", "shortlist-trigger")


# --- what is shipped, and what is written


def written() -> Iterator[Object]:
    """Give what rollouts and trainings write."""
    owner = ObjectOwner(cluster="eu-1", namespace="ml", spec="demo")
    for number, cluster in enumerate((CLUSTER, FULL), start=1):
        version = Version(
            owner=owner, version=number, digest="0123456789abcdef", repository="f" * 16, source="s3://b/p",
            settings={"model": "demo"},
        )  # fmt: skip
        yield inference_service(version, cluster)
        routes = (Route(stable=4), Route(stable=4, canary=5, percent=5, rollout="20261121-120000-demo-0000", step=0))
        for route in routes:
            yield http_route(owner, cluster, route, {4: "demo-v4-aaaaaaaa", 5: "demo-v5-bbbbbbbb"}, hold_seconds=100)
    images = FULL.images.model_copy(update={"gpu": FULL.images.pipeline})
    workers = Workers(nodes=2, processes=1, pod=TASK)
    yield train_job("train-1", FULL.model_copy(update={"images": images}), workers, "s3://b/p", "k")


def shipped() -> Iterator[Object]:
    """Give what the overlays and the files for once per cluster hold."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed, which renders the overlays (kubectl kustomize)")
    for overlay in ("dev", "production"):
        command = [kubectl, "kustomize", str(K8S / "overlays" / overlay)]
        completed = subprocess.run(command, capture_output=True, text=True, check=True)
        yield from yaml.load_all(completed.stdout, yaml.CSafeLoader)
    for name in ("gateway-class", "version-readers", "admission-policy"):
        yield from yaml.safe_load_all((K8S / f"{name}.yaml").read_text())


@pytest.mark.parametrize("objects", [shipped, written], ids=["shipped", "written"])
def test_the_api_server_accepts_every_object_without_unknown_fields(
    cluster: RealCluster, objects: Callable[[], Iterator[Object]]
) -> None:
    refused, unknown_kinds, accepted = [], set(), 0
    for body in objects():
        try:
            cluster.apply(body, dry_run=True)
            accepted += 1
        except LookupError as error:  # neither defined here, nor a schema of ours
            unknown_kinds.add(str(error))
        except ApiException as error:
            refused.append(f"{body['kind']} {body['metadata']['name']}: {error.status} {error.body}")
    cluster.notes += [f"not checked: {kind}" for kind in sorted(unknown_kinds)]
    assert refused == []
    assert accepted > 0


def test_the_check_is_strict(cluster: RealCluster) -> None:
    body = next(written())
    body["spec"]["predictor"]["minReplica"] = 1
    with pytest.raises((ApiException, LookupError), match="minReplica"):
        cluster.apply(body, dry_run=True)


def wrong_rights(cluster: RealCluster, accounts: Sequence[str] = ACCOUNTS) -> list[str]:
    """Return in what the rights of accounts differ from the shipped roles."""
    return [
        f"{account} {verb} {resource}: is {not expected}, should be {expected}"
        for account in accounts
        for group, resources in RESOURCES.items()
        for resource in resources
        for verb in VERBS
        if cluster.is_allowed(account, verb, group, resource)
        is not (expected := kube_rbac.is_allowed(account, verb, group, resource, kube_rbac.NAMESPACE, None))
    ]


def test_each_account_has_exactly_the_rights_of_its_role(cluster: RealCluster) -> None:
    assert wrong_rights(cluster) == []


def test_kserve_accepts_the_written_service(cluster: RealCluster) -> None:
    if "KServe" not in cluster.controllers:
        pytest.skip("KServe does not run here")
    kserve_runs_a_written_service(cluster, next(written()))


# --- rollouts


def serve_first(world: World) -> World:
    world.serve(1)
    return world


def services(cluster: RealCluster) -> list[str]:
    path = f"/apis/{INFERENCE_SERVICE.api_version}/namespaces/{cluster.namespace}/{INFERENCE_SERVICE.plural}"
    return sorted(service["metadata"]["name"] for service in cluster.request("GET", path)["items"])


def test_a_good_candidate_is_promoted(
    cluster: RealCluster, played: PlayedControllers, make_world: Callable[..., World]
) -> None:
    world = serve_first(make_world())
    assert world.roll_out().canary().state.phase is Phase.PROMOTED
    assert world.fleet().serving() == Route(stable=2)
    eventually(lambda: services(cluster) == [world.name(2)])


def test_a_bad_candidate_is_rolled_back(
    cluster: RealCluster, played: PlayedControllers, make_world: Callable[..., World]
) -> None:
    world = serve_first(make_world())
    world.observe = lambda _: Script(bad_step=1)
    assert world.roll_out().canary().state.phase is Phase.ROLLED_BACK
    assert world.fleet().serving() == Route(stable=1)
    eventually(lambda: services(cluster) == [world.name(1)])


def test_annotations_of_other_clients_do_not_stop_a_rollout(
    cluster: RealCluster, played: PlayedControllers, make_world: Callable[..., World]
) -> None:
    world = serve_first(make_world())
    stop = threading.Event()
    path = f"/apis/{HTTP_ROUTE.api_version}/namespaces/{cluster.namespace}/{HTTP_ROUTE.plural}/shortlist-demo"

    def write() -> None:
        number = 0
        while not stop.wait(0.02):
            number += 1
            change = {"metadata": {"annotations": {"somebody.example/touched": str(number)}}}
            cluster.request("PATCH", path, change, content_type="application/merge-patch+json")

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        assert world.roll_out().canary().state.phase is Phase.PROMOTED
    finally:
        stop.set()
        thread.join(60)


def test_a_candidate_that_is_being_deleted_gets_no_more_users(
    cluster: RealCluster, played: PlayedControllers, make_world: Callable[..., World]
) -> None:
    """A finalizer holds the object; its status goes on saying Ready."""
    world = serve_first(make_world())
    name = world.name(2)
    path = f"/apis/{INFERENCE_SERVICE.api_version}/namespaces/{cluster.namespace}/{INFERENCE_SERVICE.plural}/{name}"

    def on_change(record: RolloutRecord) -> None:
        if record.state.phase is Phase.WATCHING and record.state.step == 0:
            hold = {"metadata": {"finalizers": ["shortlist.dev/test"]}}
            cluster.request("PATCH", path, hold, content_type="application/merge-patch+json")
            cluster.request("DELETE", path)

    world.on_change = on_change
    assert world.roll_out().canary().state.phase is Phase.ROLLED_BACK
    assert world.fleet().serving() == Route(stable=1)
    shares = [weights.get(f"{name}-transformer", 0) for weights in played.shares]
    assert max(shares, default=0) <= world.roll_out()._policy.steps[0]


def test_an_api_server_that_is_away_for_a_while_is_waited_for(
    played: PlayedControllers, make_world: Callable[..., World], gate: Gate
) -> None:
    world = serve_first(make_world(through=gate.port))

    def on_change(record: RolloutRecord) -> None:
        if record.state.phase is Phase.SHIFTING:
            gate.close_for(1.0)

    world.on_change = on_change
    assert world.roll_out().canary().state.phase is Phase.PROMOTED


def test_a_forbidden_call_is_an_error_with_its_reason(make_world: Callable[..., World], cluster: RealCluster) -> None:
    connection = cluster.connection(cluster.token("shortlist-server"))
    world = make_world(connection=connection, settling=1.0)
    with pytest.raises(ClusterError, match=r"refused \(403\): .*shortlist-server.*cannot list"):
        world.fleet().deploy(world.deployment(1))


def test_a_controller_that_is_killed_is_gone_on_with(
    cluster: RealCluster, played: PlayedControllers, make_world: Callable[..., World]
) -> None:
    world = serve_first(make_world())
    program = Path(__file__).parents[1] / "kserve" / "controller_program.py"
    changes: dict[str, Any] = {"namespace": cluster.namespace, "connection": world.connection, "patience": 60.0}
    changes |= {"ready_seconds": 60.0, "accepted_seconds": 30.0}
    with subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = []
        for phase in ("starting", "shifting", "watching", "promoting", ""):
            order = {"folder": str(world.folder), "url": "", "phase": phase, "changes": changes}
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            lines.append(json.loads(process.stdout.readline()))
        process.stdin.close()
    assert lines == ["killed by 9"] * 4 + ["promoted"]
    assert world.fleet().serving() == Route(stable=2)
