"""The InferenceService of a version: Triton with its repository behind Shortlist's server, both verified at start."""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from shortlist.pods.settings import container_security, resources
from shortlist.rollout.kserve.objects.owner import (
    CLUSTER_ANNOTATION,
    DIGEST_ANNOTATION,
    DIGEST_LABEL,
    MANAGED_BY,
    RELEASE_ANNOTATION,
    REPOSITORY_ANNOTATION,
    SPEC_ANNOTATION,
    ObjectOwner,
)
from shortlist.rollout.kserve.objects.pods import (
    CONTAINER,
    TMP,
    checked_image,
    fetching,
    home,
    pod,
    probe,
    variables,
)
from shortlist.rollout.kserve.objects.published import model_key, release_key, repository_key
from shortlist.rollout.kserve.servers.settings import FILES, GRPC_PORT, HTTP_PORT, LOG, RELEASE, VARIABLE
from shortlist.serving.server.requests.paths import LIVE, READY, model_path
from shortlist.serving.server.runtime.settings import SERVER_ENVIRONMENT
from shortlist.spec.cluster import Cluster, Task
from shortlist.system.kubernetes_api import INFERENCE_SERVICE, Object

COMMITTER_PORT: Final = 8081
"""Port of the log committer's metrics."""
TRITON_METRICS_PORT: Final = 8002
_STARTUP_FAILURES: Final = 120
"""Most failed probes at a start, one every five seconds; on a small share of a core it may take ten minutes."""
_TRITON_MODELS: Final = "/mnt/models"
"""Folder of Triton's repository in its pod; KServe mounts nothing there, as it fetches nothing."""
_TRITON: Final = (
    f"--model-repository={_TRITON_MODELS}",
    # No other model can be loaded from outside, and the configuration is used exactly as written.
    "--model-control-mode=none",
    "--disable-auto-complete-config",
    "--strict-readiness=true",
    "--exit-on-error=true",
    "--exit-timeout-secs=30",
    f"--http-port={HTTP_PORT}",
    f"--grpc-port={GRPC_PORT}",
    f"--metrics-port={TRITON_METRICS_PORT}",
    "--allow-gpu-metrics=true",
)
_QUEUE: Final = (
    "sum(rate(nv_inference_queue_duration_us{{{pods}}}[1m]))"
    " / clamp_min(sum(rate(nv_inference_request_success{{{pods}}}[1m])), 0.001) / 1000"
    " * count(count by (pod) (nv_inference_request_success{{{pods}}}))"
)
"""Mean milliseconds that a request waited inside Triton, times the number of pods.

By requests: nv_inference_count counts rows. Times pods: KServe leaves KEDA at AverageValue, which divides by the
number of pods, so that replicas become ceil(pods * mean / threshold), as an autoscaler on the mean itself has it."""


class Version(BaseModel):
    """A version to be served; immutable."""

    model_config = ConfigDict(frozen=True)

    owner: ObjectOwner
    version: int
    digest: str
    """Digest of the model folder."""
    repository: str
    """Digest of the Triton repository."""
    release: str = ""
    """Digest of the sources, filters and ordering; empty: clients bring their candidates."""
    source: str
    """Root of the object store."""
    settings: dict[str, Any]
    """Settings of the server, from `server_settings`."""

    @property
    def name(self) -> str:
        """Name of the InferenceService."""
        return self.owner.version_name(self.version, self.digest)


def inference_service(version: Version, cluster: Cluster) -> Object:
    """Return the InferenceService of a version.

    Raises:
        ClusterError: An image is missing, or named by a tag where only digests are allowed.
    """
    spec = {"predictor": _predictor(version, cluster), "transformer": _transformer(version, cluster)}
    return {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": INFERENCE_SERVICE.name,
        "metadata": {
            "name": version.name,
            "namespace": version.owner.namespace,
            "labels": {
                **MANAGED_BY,
                **version.owner.labels(version.version),
                DIGEST_LABEL: version.digest,
                # KServe creates no external route: the spec's HTTPRoute is the only one.
                "networking.kserve.io/visibility": "cluster-local",
            },
            "annotations": {
                "serving.kserve.io/deploymentMode": "Standard",
                "serving.kserve.io/autoscalerClass": "keda",
                CLUSTER_ANNOTATION: version.owner.cluster,
                DIGEST_ANNOTATION: version.digest,
                REPOSITORY_ANNOTATION: version.repository,
                RELEASE_ANNOTATION: version.release,
                SPEC_ANNOTATION: json.dumps(spec, sort_keys=True),
            },
        },
        "spec": spec,
    }


def _predictor(version: Version, cluster: Cluster) -> Object:
    key = repository_key(version.owner, version.version, version.digest, version.repository)
    triton = checked_image(cluster.images.triton, "triton", cluster.images.allow_tags)
    mounts = [
        {"name": "files", "mountPath": _TRITON_MODELS, "subPath": "repository", "readOnly": True},
        TMP,
    ]
    # A container and not a `model`: KServe treats a model without a storageUri as a multi-model server, and its webhook
    # (since 0.16) refuses a model with a name.
    return {
        **pod(version.name, cluster, version.source, key, version.repository, "repository"),
        "containers": [
            {
                "name": CONTAINER,
                "image": triton,
                "command": ["tritonserver"],
                "args": list(_TRITON),
                "ports": [
                    {"name": "http1", "containerPort": HTTP_PORT, "protocol": "TCP"},
                    {"name": "grpc", "containerPort": GRPC_PORT, "protocol": "TCP"},
                    {"name": "metrics", "containerPort": TRITON_METRICS_PORT, "protocol": "TCP"},
                ],
                "env": [home()],
                "resources": resources(cluster.serving),
                "securityContext": container_security(),
                "volumeMounts": mounts,
                "readinessProbe": probe(f"{model_path(version.owner.spec)}/ready"),
            }
        ],
        "autoScaling": {"metrics": [_queue_metric(version, cluster)]},
    }


def _transformer(version: Version, cluster: Cluster) -> Object:
    key = model_key(version.owner, version.version, version.digest)
    server = checked_image(cluster.images.pipeline, "pipeline", cluster.images.allow_tags)
    common = pod(version.name, cluster, version.source, key, version.digest, "model")
    if version.release:
        released = release_key(version.owner, version.version, version.digest, version.release)
        fetch_release = fetching("verify-release", cluster, version.source, released, version.release, RELEASE)
        common["initContainers"] = [*common["initContainers"], fetch_release]
    return {
        **common,
        "containers": [
            {
                "name": CONTAINER,
                "image": server,
                "command": ["python", "-m", "shortlist.rollout.kserve.servers.serve"],
                "args": [],
                "ports": [
                    {"name": "http1", "containerPort": HTTP_PORT, "protocol": "TCP"},
                    {"name": "grpc", "containerPort": GRPC_PORT, "protocol": "TCP"},
                ],
                "env": [
                    {"name": VARIABLE, "value": json.dumps(version.settings, sort_keys=True)},
                    *({"name": name, "value": value} for name, value in SERVER_ENVIRONMENT.items()),
                    *variables(cluster),
                ],
                "resources": resources(cluster.serving.model_copy(update={"gpus": 0})),
                "securityContext": container_security(),
                "volumeMounts": [
                    {"name": "files", "mountPath": FILES, "readOnly": True},
                    {"name": "log", "mountPath": LOG},
                    TMP,
                ],
                "readinessProbe": probe(READY),
                "startupProbe": probe(LIVE, failures=_STARTUP_FAILURES),
                # A process with little processor time answers late, and a restart would make that worse.
                "livenessProbe": probe(LIVE, seconds=10, timeout_seconds=10, failures=6),
            },
            _committer(version, cluster),
        ],
        "autoScaling": {"metrics": [_cpu_metric()]},
    }


def _committer(version: Version, cluster: Cluster) -> Object:
    """Return the container that commits the logs to tables in the object store; no answer waits for it."""
    options = {"--folder": LOG, "--objects": version.source, "--spec": version.owner.spec}
    options["--metrics-host"] = "0.0.0.0"  # noqa: S104
    options["--metrics-port"] = str(COMMITTER_PORT)
    return {
        "name": "log-committer",
        "image": checked_image(cluster.images.pipeline, "pipeline", cluster.images.allow_tags),
        "command": ["python", "-m", "shortlist.serving.log.committer"],
        "args": [argument for option in options.items() for argument in option],
        "ports": [{"name": "log-metrics", "containerPort": COMMITTER_PORT, "protocol": "TCP"}],
        "env": variables(cluster),
        "resources": resources(Task(cpu="200m", memory="512Mi")),
        "securityContext": container_security(),
        "volumeMounts": [{"name": "log", "mountPath": LOG}, TMP],
    }


def _queue_metric(version: Version, cluster: Cluster) -> Object:
    pods = f'namespace="{version.owner.namespace}",pod=~"{version.name}-predictor-.*"'
    metric = {
        "backend": "prometheus",
        "serverAddress": cluster.prometheus,
        "query": _QUEUE.format(pods=pods),
    }
    # KServe writes `value` as it is into the threshold of KEDA's trigger, which reads a number: 0.5, and never 500m.
    target = {"type": "Value", "value": f"{cluster.autoscaling.queue_milliseconds:.10g}"}
    return {"type": "External", "external": {"metric": metric, "target": target}}


def _cpu_metric() -> Object:
    return {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}},
    }
