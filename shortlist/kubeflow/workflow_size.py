"""Estimates the size of the Argo workflow of a run, which Argo limits.

Kubeflow Pipelines makes one workflow of a run. Its specification holds every component, container and task. Its status,
which Argo stores compressed where the workflow is large, holds five nodes per step; four of them have the patch of the
step's pod, in which the values of the step's parameters stand twice (backend/src/v2/compiler/argocompiler and
backend/src/v2/driver/driver.go of Kubeflow Pipelines 2.17, workflow/packer of Argo Workflows). The estimate is within
a tenth of a model that wrote every node as Kubeflow does, for all graphs of two specs with up to 65 steps; a cluster's
workflow of a training grew as that model's did.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shortlist.contracts import ShortlistError

MAX_BYTES: Final = 1024 * 1024
"""Argo's limit: a workflow whose specification and compressed status are larger is not stored, and the run fails."""
SHARE: Final = 0.8
"""Share of the limit that a run may be estimated at; the rest is for retried pods and long messages."""
_FIXED_BYTES: Final = 9_000
"""Templates of drivers and executors, entry point and metadata, which every workflow has once."""
_SPECIFICATION_FACTOR: Final = 2.1
"""Bytes of the specification per byte of kfp's."""
_STEP_BYTES: Final = 3_000
"""Names, times, artefacts and the launcher's arguments in the nodes of a step, compressed."""
_PATCHED_NODES: Final = 4
_UNKNOWN: Final = "x" * 64
"""Stands for a value that only the run knows, such as a digest or a time."""


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
    steps = list(_step_texts(pipeline, pipeline["root"], arguments, arguments, loop_items))
    specification = _FIXED_BYTES + int(_SPECIFICATION_FACTOR * len(_text(pipeline))) + len(_text(platform))
    compressed = base64.b64encode(zlib.compress("".join(steps).encode(), 6))
    return WorkflowSize(specification, len(compressed) + _STEP_BYTES * len(steps), len(steps))


def _step_texts(
    pipeline: Mapping[str, Any], group: Mapping[str, Any], values: Mapping[str, Any], arguments: Mapping[str, Any],
    loop_items: Sequence[Any],
) -> Iterator[str]:  # fmt: skip
    """Give what the status holds of each step of a group of tasks whose parameters have values."""
    for task in group["dag"]["tasks"].values():
        component = pipeline["components"][task["componentRef"]["name"]]
        sources, artefacts = (task.get("inputs", {}).get(kind, {}) for kind in ("parameters", "artifacts"))
        inputs = {name: _value(source, values, arguments) for name, source in sources.items()}
        iterator = task.get("parameterIterator")
        for item in loop_items if iterator else [None]:
            item_inputs = inputs | ({iterator["itemInput"]: item} if iterator else {})
            if "dag" in component:
                yield from _step_texts(pipeline, component, item_inputs, arguments, loop_items)
                continue
            container = pipeline["deploymentSpec"]["executors"][component["executorLabel"]]
            executor_input = _text([item_inputs, sorted(artefacts)])
            patch = _text([executor_input, _text(component), container, executor_input])
            yield _text([_text(component), _text(task), _text(container), *[patch] * _PATCHED_NODES])


def _value(source: Mapping[str, Any], values: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
    """Return the value of a task's input; an output that passes a parameter of the graph on has its value."""
    if "componentInputParameter" in source:
        return values.get(source["componentInputParameter"], _UNKNOWN)
    if "taskOutputParameter" in source:
        return arguments.get(source["taskOutputParameter"]["outputParameterKey"], _UNKNOWN)
    return source.get("runtimeValue", {}).get("constant", _UNKNOWN)


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
