"""Estimates the size of the Argo workflow of a run, which Argo limits.

Kubeflow Pipelines makes one workflow of a run. Its specification holds every component once. Its status, which Argo
stores compressed where the workflow is large, holds what every pod gets: the driver of a step receives the component,
the task and the container, and answers with a patch of the step's pod, in which the values of all its parameters stand
twice; the patch is an input of three more nodes. Sources: backend/src/v2/compiler/argocompiler and
backend/src/v2/driver/driver.go of Kubeflow Pipelines 2.17, and workflow/packer of Argo Workflows. The median of 139
pipelines in Kubeflow's repository is 2 % from what its compiler writes. On a cluster the workflow of a graph grew by
6.8 kB per Argo pod, and by 6.8 kB in this model of the same graph.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shortlist.contracts import ShortlistError

MAX_BYTES: Final = 1024 * 1024
"""Argo's limit: a workflow whose specification and compressed status are larger is not stored, and the run fails."""
SHARE: Final = 0.8
"""Share of the limit that a run may be estimated at; the rest is for retried pods and long messages."""
_FIXED_BYTES: Final = 9_000
"""Templates of drivers and executors, entry point and metadata, which every workflow has once."""
_UNKNOWN: Final = "x" * 64
"""Stands for a value that only the run knows, such as a digest or a time."""
_HASH: Final = "0" * 64
_OUTPUTS: Final = "/tmp/kfp/outputs"  # noqa: S108 - the driver's path
_ARTEFACT_METADATA: Final = {"name": "fit_features", "step": "json:" + "m" * 300}
"""Metadata of an input artefact: the record of the step that made it (`shortlist.tracking.artefact_metadata`)."""
_RETRY_PARAMETERS: Final = ("max-count", "backoff-duration", "backoff-factor", "backoff-max-duration")
_LAUNCHER_ARGUMENTS: Final = [
    "/kfp-launcher/launch", "--executor_type", "container", "--pipeline_name", _UNKNOWN[:30], "--run_id",
    "00000000-0000-0000-0000-000000000000", "--execution_id", "1000", "--pod_name", "$(KFP_POD_NAME)", "--pod_uid",
    "$(KFP_POD_UID)", "--ml_pipeline_server_address", "ml-pipeline.kubeflow.svc.cluster.local",
    "--ml_pipeline_server_port", "8887", "--mlmd_server_address", "metadata-grpc-service.kubeflow.svc.cluster.local",
    "--mlmd_server_port", "8080", "--publish_logs", "true", "--ml_pipeline_tls_enabled=false",
    "--metadata_tls_enabled=false", "--ca_cert_path", "", "--cache_disabled=false", "--log_level", "1", "--",
]  # fmt: skip


@dataclass(frozen=True)
class WorkflowSize:
    """Size of a workflow at the end of its run, in bytes."""

    specification: int
    status: int
    """Compressed."""
    pods: int
    """Pods of steps; each has a driver, which is a pod, too."""

    @property
    def total(self) -> int:
        """Bytes that Argo compares with its limit."""
        return self.specification + self.status


def check_workflow_size(size: WorkflowSize, graph: str, models: int) -> None:
    """Check that Argo can store the workflow of a run.

    Args:
        size: Its size.
        graph: Name of the pipeline.
        models: Number of models that it trains.

    Raises:
        ShortlistError: It is larger than the share of Argo's limit that a run may have.
    """
    if size.total > SHARE * MAX_BYTES:
        raise ShortlistError(
            f"pipeline {graph}: a run has {size.pods} pods and {models} models, and its Argo workflow grows to about"
            f" {size.total // 1_000} kB; wanted at most {int(SHARE * MAX_BYTES) // 1_000} kB, for Argo stores"
            f" {MAX_BYTES // 1_000} kB and retries need room. Nothing was submitted. Declare"
            " runtime.cluster.shared_pods or fewer models, or divide the models among several specs."
        )


def estimate_workflow_size(
    pipeline: Mapping[str, Any], platform: Mapping[str, Any], arguments: Mapping[str, Any], loop_items: Sequence[Any]
) -> WorkflowSize:
    """Return the size of the workflow of a run whose tasks are all executed.

    Args:
        pipeline: kfp's specification of the graph, as plain data.
        platform: kfp's platform specification, as plain data.
        arguments: Values of the graph's parameters.
        loop_items: Items of each loop of the graph.
    """
    workflow = _Workflow(pipeline, platform, arguments, loop_items)
    specification = _FIXED_BYTES + _size([workflow.arguments(), workflow.templates()])
    nodes = {f"shortlist-training-abcde-{1_000_000_000 + i}": node for i, node in enumerate(workflow.nodes())}
    compressed = zlib.compress(_text(nodes).encode(), 6)
    return WorkflowSize(specification, len(base64.b64encode(compressed)), len(workflow.executed))


@dataclass
class _Workflow:
    """A workflow, written as Kubeflow's compiler and driver write it."""

    pipeline: Mapping[str, Any]
    platform: Mapping[str, Any]
    values: Mapping[str, Any]
    """Values of the graph's parameters."""
    loop_items: Sequence[Any]
    executed: list[str] = field(default_factory=list)
    """Name of the task of every pod, once `nodes` was read."""

    def arguments(self) -> list[dict[str, Any]]:
        """Return the parameters of the workflow: every component, container and pod configuration once."""
        containers, pods = self._containers(), self._pod_settings()
        # Components with the same container share an argument.
        components = {
            _text(containers.get(spec.get("executorLabel", ""), name)): spec
            for name, spec in self._components().items()
        }
        parameters = [_parameter(f"components-{_HASH}", _text(spec)) for spec in components.values()]
        implementations = dict.fromkeys(map(_text, containers.values()))
        parameters += [_parameter(f"implementations-{_HASH}", text) for text in implementations]
        return parameters + [_parameter(f"kubernetes-{label}", _text(pods[label])) for label in pods]

    def templates(self) -> list[dict[str, Any]]:
        """Return the template of every group of tasks."""
        groups = {name: spec for name, spec in self._components().items() if "dag" in spec}
        return [
            {
                "name": name, "inputs": {"parameters": [{"name": "parent-dag-id"}]}, "outputs": {}, "metadata": {},
                "dag": {"tasks": [part for item in group["dag"]["tasks"].items() for part in self._dag_tasks(*item)]},
            }
            for name, group in groups.items()
        ]  # fmt: skip

    def nodes(self) -> Iterator[dict[str, Any]]:
        """Return the status of every node."""
        runtime = _text({"parameterValues": self.values})
        root = {"component": _text(self.pipeline["root"]), "runtime-config": runtime, "driver-type": "ROOT_DAG"}
        yield _node("Pod", root, {"execution-id": "1000", "iteration-count": "0", "condition": "true"})
        yield from self._group_nodes(self.pipeline["root"], dict(self.values))

    def _components(self) -> dict[str, Any]:
        return {**self.pipeline["components"], "root": self.pipeline["root"]}

    def _containers(self) -> dict[str, Any]:
        executors = self.pipeline["deploymentSpec"]["executors"]
        return {label: executor["container"] for label, executor in executors.items()}

    def _pod_settings(self) -> dict[str, Any]:
        kubernetes = self.platform.get("platforms", {}).get("kubernetes", {})
        settings: dict[str, Any] = kubernetes.get("deploymentSpec", {}).get("executors", {})
        return settings

    def _dag_tasks(self, name: str, task: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the two tasks that Argo has for one: the driver, and the pod or group; a loop has two more."""
        component = self._components()[task["componentRef"]["name"]]
        driver = {
            "component": f"{{{{workflow.parameters.components-{_HASH}}}}}", "task": _text(task), "task-name": name,
            "parent-dag-id": "{{inputs.parameters.parent-dag-id}}",
        }  # fmt: skip
        runner = {"condition": f"{{{{tasks.{name}-driver.outputs.parameters.condition}}}}"}
        if "executorLabel" in component:
            driver["container"] = f"{{{{workflow.parameters.implementations-{_HASH}}}}}"
            driver["kubernetes-config"] = f"{{{{workflow.parameters.kubernetes-{name}}}}}"
            runner["pod-spec-patch"] = f"{{{{tasks.{name}-driver.outputs.parameters.pod-spec-patch}}}}"
            runner["cached-decision"] = f"{{{{tasks.{name}-driver.outputs.parameters.cached-decision}}}}"
            runner |= _retry_values(task)
        depends = " && ".join(f"{dependency}.Succeeded" for dependency in _dependencies(task))
        pair = [
            {"name": f"{name}-driver", "template": "system-container-driver", "depends": depends}
            | {"arguments": {"parameters": [_parameter(*item) for item in driver.items()]}},
            {"name": name, "template": task["componentRef"]["name"], "depends": f"{name}-driver.Succeeded"}
            | {"arguments": {"parameters": [_parameter(*item) for item in runner.items()]}},
        ]
        return pair * (2 if "parameterIterator" in task else 1)

    def _group_nodes(self, group: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Return the nodes of a group of tasks whose parameters have values."""
        yield _node("DAG", {"parent-dag-id": "1000", "condition": "true"}, {})
        for name, task in group["dag"]["tasks"].items():
            component = self._components()[task["componentRef"]["name"]]
            inputs = {key: self._value(source, values) for key, source in _inputs(task, "parameters").items()}
            driver = {"component": _text(component), "task": _text(task), "task-name": name, "parent-dag-id": "1000"}
            iterator = task.get("parameterIterator")
            if iterator:
                yield _node("Pod", driver, {"execution-id": "1000", "iteration-count": "1", "condition": "true"})
                yield _node("DAG", {"parent-dag-id": "1000"}, {})
            for item in self.loop_items if iterator else [None]:
                if iterator:
                    inputs[iterator["itemInput"]] = item
                    yield _node("DAG", {"parent-dag-id": "1000", "iteration-index": "0"}, {})
                if "dag" in component:
                    yield _node("Pod", driver, {"execution-id": "1000", "iteration-count": "0", "condition": "true"})
                    yield from self._group_nodes(component, inputs)
                else:
                    self.executed.append(name)
                    yield from self._step_nodes(task, component, inputs, driver)

    def _step_nodes(
        self, task: Mapping[str, Any], component: Mapping[str, Any], inputs: Mapping[str, Any], driver: dict[str, str]
    ) -> Iterator[dict[str, Any]]:
        """Return the nodes of a step: driver, executor, and, where it is retried, the retries and the pod."""
        label = component["executorLabel"]
        container = self._containers()[label]
        patch = _text(self._pod_patch(component, container, inputs))
        driver |= {"container": _text(container), "kubernetes-config": _text(self._pod_settings().get(label, {}))}
        outputs = {"pod-spec-patch": patch, "cached-decision": "false", "condition": "true"}
        yield _node("Pod", driver, outputs)
        received = {"pod-spec-patch": patch, "cached-decision": "false"} | _retry_values(task)
        for kind in ("DAG", "Retry", "Pod") if "retryPolicy" in task else ("DAG", "Pod"):
            yield _node(kind, received, {})

    def _pod_patch(
        self, component: Mapping[str, Any], container: Mapping[str, Any], inputs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the patch of a step's pod, in which the executor input stands twice."""
        executor_input = _text(self._executor_input(component, inputs))
        launcher = [*_LAUNCHER_ARGUMENTS, "--executor_input", executor_input, "--component_spec", _text(component)]
        program = [*container.get("command", ()), *container.get("args", ())]
        main = {
            "name": "main", "image": container["image"], "command": launcher, "resources": container.get("resources"),
            "args": [executor_input if "$" in argument else argument for argument in program],
            "env": container.get("env", []),
        }  # fmt: skip
        return {"containers": [main], **self._pod_settings().get(component["executorLabel"], {})}

    def _executor_input(self, component: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        declared, made = component.get("inputDefinitions", {}), component.get("outputDefinitions", {})
        several = len(self.loop_items)
        artefacts = {
            name: {
                "artifacts": [_artefact(name, kind, _ARTEFACT_METADATA)]
                * (several if kind.get("isArtifactList") else 1)
            }
            for name, kind in declared.get("artifacts", {}).items()
        }
        return {
            "inputs": {"parameterValues": dict(inputs), "artifacts": artefacts},
            "outputs": {
                "parameters": {name: {"outputFile": f"{_OUTPUTS}/{name}"} for name in made.get("parameters", {})},
                "artifacts": {
                    name: {"artifacts": [_artefact(name, kind, {})]} for name, kind in made.get("artifacts", {}).items()
                },
                "outputFile": f"{_OUTPUTS}/output_metadata.json",
            },
        }

    def _value(self, source: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
        """Return the value of a task's input; an output that passes a parameter of the graph on has its value."""
        if "componentInputParameter" in source:
            return values.get(source["componentInputParameter"], _UNKNOWN)
        if "taskOutputParameter" in source:
            return self.values.get(source["taskOutputParameter"]["outputParameterKey"], _UNKNOWN)
        return source.get("runtimeValue", {}).get("constant", _UNKNOWN)


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _size(value: Any) -> int:
    return len(_text(value).encode())


def _parameter(name: str, value: str) -> dict[str, str]:
    return {"name": name, "value": value}


def _inputs(task: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    inputs: Mapping[str, Any] = task.get("inputs", {}).get(kind, {})
    return inputs


def _dependencies(task: Mapping[str, Any]) -> list[str]:
    """Return the tasks that end before a task: those that are declared, and those whose outputs it reads."""
    sources = [*_inputs(task, "parameters").values(), *_inputs(task, "artifacts").values()]
    outputs = [source.get("taskOutputParameter") or source.get("taskOutputArtifact") for source in sources]
    return sorted({*task.get("dependentTasks", ()), *(output["producerTask"] for output in outputs if output)})


def _retry_values(task: Mapping[str, Any]) -> dict[str, str]:
    return {f"retry-{name}": "30" for name in _RETRY_PARAMETERS} if "retryPolicy" in task else {}


def _artefact(name: str, kind: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    uri = f"s3://bucket/v2/artifacts/shortlist-training/00000000-0000-0000-0000-000000000000/step/0000/{name}"
    return {"name": name, "type": kind["artifactType"], "uri": uri, "metadata": metadata, "customPath": ""}


def _node(kind: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> dict[str, Any]:
    """Return the status of a node, as Argo writes it."""
    identity = "shortlist-training-abcde.root.exit-handler-1.step-driver"
    time = "2026-01-02T03:04:05Z"
    return {
        "id": "shortlist-training-abcde-1000000000", "name": identity, "displayName": "step-driver", "type": kind,
        "templateName": "system-container-driver", "templateScope": "local/shortlist-training-abcde",
        "phase": "Succeeded", "boundaryID": "shortlist-training-abcde-1000000000", "startedAt": time,
        "finishedAt": time, "progress": "1/1", "resourcesDuration": {"cpu": 10, "memory": 100},
        "inputs": {"parameters": [_parameter(*item) for item in inputs.items()]},
        "outputs": {
            "parameters": [
                _parameter(*item) | {"valueFrom": {"path": f"{_OUTPUTS}/{item[0]}", "default": ""}}
                for item in outputs.items()
            ],
            "exitCode": "0",
        },
        "children": ["shortlist-training-abcde-1000000000"], "hostNodeName": "node-1",
    }  # fmt: skip
