"""What KServe's webhooks and controller, and the API server, do beyond schemas; measured with KServe 0.20.

Each rule is one that a schema cannot say and that refused, rewrote or broke something of ours on a real cluster.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from shortlist.spec.text.quantity import canonical_quantity

Object = dict[str, Any]
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_WEBHOOK = 'admission webhook "inferenceservice.kserve-webhook-server.validator" denied the request: '
_MOST_ANNOTATIONS = 256 * 1024


def metadata_problems(metadata: Object) -> Iterator[str]:
    """Give what the API server has against labels and annotations."""
    for name, value in (metadata.get("labels") or {}).items():
        if not _KEY.fullmatch(name):
            yield f"metadata.labels: Invalid value: {name!r}"
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            yield f"metadata.labels.{name}: Invalid value: {value!r}"
    annotations = metadata.get("annotations") or {}
    for name, value in annotations.items():
        if not _KEY.fullmatch(name):
            yield f"metadata.annotations: Invalid value: {name!r}"
        if not isinstance(value, str):
            yield f"metadata.annotations.{name}: Invalid value: {value!r}: must be of type string"
    if sum(len(f"{name}{value}") for name, value in annotations.items()) > _MOST_ANNOTATIONS:
        yield "metadata.annotations: Too long"


def denial(service: Object) -> str | None:
    """Return what KServe's validating webhook says against an InferenceService; None when it lets it pass."""
    predictor = service["spec"]["predictor"]
    if not _NAME.fullmatch(service["metadata"]["name"]):
        return (
            f'{_WEBHOOK}the InferenceService "{service["metadata"]["name"]}" is invalid: a InferenceService name must'
        )
    if "name" in predictor.get("model", {}):
        return f"{_WEBHOOK}the 'name' field is not allowed in standard predictor"
    if ("model" in predictor) == bool(predictor.get("containers")):
        return f"{_WEBHOOK}exactly one of [model, containers] must be specified in PredictorSpec"
    for part in service["spec"].values():
        if part.get("maxReplicas", 0) and part.get("minReplicas", 0) > part["maxReplicas"]:
            return f"{_WEBHOOK}MinReplicas cannot be greater than MaxReplicas"
    return None


def defaulted(service: Object) -> Object:
    """Return an InferenceService as KServe's defaulting webhook and the API server store it."""
    filled = copy.deepcopy(service)
    for part in filled["spec"].values():
        for container in _containers(part):
            container.setdefault("resources", {})
            container.setdefault("terminationMessagePath", "/dev/termination-log")
            for amounts in container["resources"].values():
                amounts.update({name: canonical_quantity(str(amount)) for name, amount in amounts.items()})
        for volume in part.get("volumes", []):
            if "sizeLimit" in volume.get("emptyDir", {}):
                volume["emptyDir"]["sizeLimit"] = canonical_quantity(str(volume["emptyDir"]["sizeLimit"]))
    return filled


def scaled_object(service: Object, component: str) -> Object:
    """Return the ScaledObject of KEDA that KServe's controller makes of a component.

    Source: createKedaScaledObject in KServe's reconcilers/keda/keda_reconciler.go. A target's value is passed on as it
    is written (metric_quantity.go).
    """
    part = service["spec"][component]
    triggers: list[Object] = []
    for metric in part["autoScaling"]["metrics"]:
        if metric["type"] == "Resource":
            resource, target = metric["resource"], metric["resource"]["target"]
            value = str(target["averageUtilization"])
            triggers.append({"type": resource["name"], "metadata": {"value": value}, "metricType": target["type"]})
        else:
            source, target = metric["external"]["metric"], metric["external"]["target"]
            metadata = {name: source[name] for name in ("serverAddress", "query")}
            metadata["threshold"] = str(target.get("value", "0"))
            triggers.append({"type": source["backend"], "metadata": metadata})
    name, least = f"{service['metadata']['name']}-{component}", part.get("minReplicas", 1)
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name, "namespace": service["metadata"]["namespace"]},
        "spec": {
            "scaleTargetRef": {"name": name},
            "triggers": triggers,
            "minReplicaCount": least,
            "maxReplicaCount": max(part.get("maxReplicas", 0), least),
        },
    }


def conditions(is_transformer_ready: bool) -> list[Object]:
    """Return the conditions of a cluster-local InferenceService whose predictor is ready.

    `Ready` does not count the transformer, and a component with 0 of 0 replicas is ready.
    """
    transformer = {"type": "TransformerReady", "status": "True" if is_transformer_ready else "False"}
    others = [{"type": kind, "status": "True"} for kind in ("IngressReady", "PredictorReady", "Ready")]
    return [*others, transformer]


def broken_pods(service: Object) -> str | None:
    """Return why the pods that KServe's controller makes of an InferenceService are refused; None when they are not."""
    for name, part in service["spec"].items():
        containers = _containers(part)
        if "model" in part and "storageUri" not in part["model"]:
            # Taken for a multi-model server: its agent and a second mount of the models' folder are injected.
            mounts = part["model"].setdefault("volumeMounts", [])
            mounts.append({"name": "model-dir", "mountPath": "/mnt/models"})
        elif "kserve-container" not in {container.get("name") for container in containers}:
            return f"{name}: no container is named kserve-container"
        for container in containers:
            paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
            for path in paths:
                if paths.count(path) > 1:
                    return f'{name}: spec.containers.volumeMounts.mountPath: Invalid value: "{path}": must be unique'
        for toleration in part.get("tolerations", []):
            if toleration.get("operator", "Equal") == "Exists" and toleration.get("value"):
                return (
                    f"{name}: spec.tolerations.operator: Invalid value: value must be empty when `operator` is 'Exists'"
                )
    return None


def _containers(part: Object) -> list[Object]:
    model = [part["model"]] if "model" in part else []
    return [*part.get("containers", []), *part.get("initContainers", []), *model]
