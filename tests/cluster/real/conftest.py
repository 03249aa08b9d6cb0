"""A real cluster, named by `make test-cluster KUBECONFIG=...`, and a namespace of its own in it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import kube_rbac
import pytest
from kserve_world import CLUSTER, World
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from real_cluster import Gate, PlayedControllers, RealCluster, eventually
from structural import definitions
from yaml import YAMLError

VARIABLE = "SHORTLIST_TEST_KUBECONFIG"
_CLUSTERS: list[RealCluster] = []
_REQUIRED_KINDS = (("serving.kserve.io/v1beta1", "InferenceService"), ("gateway.networking.k8s.io/v1", "HTTPRoute"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what kind of cluster it was, and what could not be checked in it."""
    for real_cluster in _CLUSTERS:
        for line in real_cluster.notes:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    """The cluster; what the tests make in it goes with their namespace, and what they define goes after it."""
    file = os.environ.get(VARIABLE)
    if not file:
        pytest.skip("no cluster is named: make test-cluster KUBECONFIG=path")
    configuration = client.Configuration()
    try:
        config.load_kube_config(config_file=file, client_configuration=configuration)
    # The loader takes a file for what it should be: whatever is wrong in it comes out as one of these.
    except (config.ConfigException, YAMLError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
        pytest.exit(f"KUBECONFIG={file}: no kubeconfig ({reason}); name the file of a cluster", returncode=2)
    configuration.retries = False
    real_cluster = RealCluster(client.ApiClient(configuration), f"shortlist-test-{uuid.uuid4().hex[:8]}")
    labels = {"app.kubernetes.io/managed-by": "shortlist-tests"}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": real_cluster.namespace, "labels": labels}}
    real_cluster.request("POST", "/api/v1/namespaces", body)
    if real_cluster.kind_of_cluster == "bare":
        _define(real_cluster)
    for object_ in kube_rbac.shipped():
        if object_["kind"] == "RoleBinding":
            subjects = [{**subject, "namespace": real_cluster.namespace} for subject in object_["subjects"]]
            real_cluster.apply({**object_, "subjects": subjects})
        else:
            real_cluster.apply(object_)
    _CLUSTERS.append(real_cluster)
    real_cluster.notes.append(
        f"{real_cluster.api.configuration.host}: Kubernetes {real_cluster.version}; {said_of(real_cluster)}"
    )
    yield real_cluster
    with suppress(ApiException):
        real_cluster.request("DELETE", f"/api/v1/namespaces/{real_cluster.namespace}")
    for name in real_cluster.defined:
        with suppress(ApiException):
            real_cluster.request("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")


def said_of(cluster: RealCluster) -> str:
    """Return which kind of cluster this is, in words."""
    match cluster.kind_of_cluster:
        case "full":
            return "a full cluster: KServe and Envoy Gateway run here"
        case "partial":
            return f"a partial cluster: {', '.join(cluster.controllers)} runs here, the other does not"
        case _:
            note = f"; {len(cluster.defined)} kinds were defined from the shipped schemas" if cluster.defined else ""
            return f"a bare API server: the tests play KServe's controller and the gateway{note}"


def _define(cluster: RealCluster) -> None:
    """Define the custom resources that are missing, and wait until they are served."""
    for (version, kind), body in definitions().items():
        if not _serves_kind(cluster, version, kind):
            cluster.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
            cluster.defined.append(body["metadata"]["name"])
    eventually(lambda: all(_serves_kind(cluster, *definition) for definition in definitions()))


def _serves_kind(cluster: RealCluster, version: str, kind: str) -> bool:
    with suppress(LookupError):
        return bool(cluster.path_of({"apiVersion": version, "kind": kind, "metadata": {"name": "any"}}))
    return False


@pytest.fixture
def played(cluster: RealCluster) -> Iterator[PlayedControllers]:
    """The controllers, where none are here."""
    if cluster.kind_of_cluster != "bare":
        pytest.skip(f"{said_of(cluster)}; rollouts are tried where the tests may play the controllers")
    for version, kind in _REQUIRED_KINDS:
        if not _serves_kind(cluster, version, kind):
            pytest.skip(f"this cluster has no {kind} of {version}")
    controllers = PlayedControllers(cluster)
    yield controllers
    controllers.stop()
    assert controllers.wrong == []


@pytest.fixture
def gate(cluster: RealCluster) -> Iterator[Gate]:
    """A way to the API server that can be closed."""
    api_gate = Gate(cluster.api.configuration.host)
    yield api_gate
    api_gate.stop()


@pytest.fixture
def make_world(cluster: RealCluster, tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Give what makes a spec with two blessed versions, driven by the rollout's own account."""
    cluster_section = CLUSTER.model_copy(update={"namespace": cluster.namespace})
    token = cluster.token("shortlist-rollout")

    def make(through: int | None = None, **changes: Any) -> World:
        settings = {
            "cluster": cluster_section, "connection": cluster.connection(token, through),
            "patience": 60.0, "settling": 15.0,
            "ready_seconds": 60.0, "accepted_seconds": 30.0, **changes,
        }  # fmt: skip
        return World(tmp_path, "", **settings)

    yield make
    for version, plural in (
        ("gateway.networking.k8s.io/v1", "httproutes"),
        ("serving.kserve.io/v1beta1", "inferenceservices"),
    ):
        path = f"/apis/{version}/namespaces/{cluster.namespace}/{plural}"
        with suppress(ApiException):
            for object_ in cluster.request("GET", path)["items"]:
                clear = {"metadata": {"finalizers": None}}
                object_path = f"{path}/{object_['metadata']['name']}"
                cluster.request("PATCH", object_path, clear, content_type="application/merge-patch+json")
                with suppress(ApiException):
                    cluster.request("DELETE", object_path)
