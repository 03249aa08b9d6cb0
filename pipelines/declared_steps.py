"""Removes the steps from a compiled graph for which a spec declares nothing."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import yaml

from shortlist.spec.spec import Spec

_KINDS: Final = {
    "parameters": ("taskOutputParameter", "componentInputParameter"),
    "artifacts": ("taskOutputArtifact", "componentInputArtifact"),
}
"""Kind of a task's inputs -> fields that name the output of another task, and an input of the enclosing group."""


def undeclared_steps(spec: Spec) -> frozenset[str]:
    """Return the steps for which a spec declares nothing, by the names of their components."""
    retrieves = spec.retrieval is not None
    declared = {
        "build_retrieval": retrieves,
        "build_release": retrieves,
        "evaluate_slates": retrieves,
        "refresh_releases": retrieves,
        "train_ensembles": any(model.members for model in spec.models.values()),
    }
    return frozenset(step for step, is_declared in declared.items() if not is_declared)


def write_declared(compiled: Path, spec: Spec, out: Path) -> Path:
    """Write a compiled graph without the steps for which a spec declares nothing; return the file."""
    pipeline, *platform = yaml.load_all(compiled.read_text(), yaml.CSafeLoader)
    remove_steps(pipeline, undeclared_steps(spec))
    out.write_text(yaml.dump_all([pipeline, *platform], Dumper=yaml.CSafeDumper, sort_keys=False))
    return out


def remove_steps(pipeline: dict[str, Any], steps: Collection[str]) -> None:
    """Remove steps from a graph, and their outputs from the inputs of other steps, where these must be optional.

    Args:
        pipeline: A `PipelineSpec` as plain data; changed in place.
        steps: Names of components.
    """
    executors, components = pipeline["deploymentSpec"]["executors"], pipeline["components"]
    removed_components = {
        name
        for name, component in components.items()
        if _component_name(executors, component.get("executorLabel")) in steps
    }
    for group in (pipeline["root"], *components.values()):
        tasks = group.get("dag", {}).get("tasks", {})
        removed = {name for name, task in tasks.items() if task["componentRef"]["name"] in removed_components}
        for name in removed:
            del tasks[name]
        for task in tasks.values():
            _remove_dependencies(task, removed, components)
    for name in removed_components:
        del executors[components.pop(name)["executorLabel"]]


def _component_name(executors: dict[str, Any], label: str | None) -> str:
    arguments = executors[label]["container"]["args"] if label else ["--function_to_execute", ""]
    return str(arguments[arguments.index("--function_to_execute") + 1])


def _remove_dependencies(task: dict[str, Any], removed: set[str], components: dict[str, Any]) -> None:
    remaining = [name for name in task.get("dependentTasks", ()) if name not in removed]
    if "dependentTasks" in task:
        task["dependentTasks"] = remaining
    for kind, (output, _) in _KINDS.items():
        inputs = task.get("inputs", {}).get(kind, {})
        for name in [name for name, source in inputs.items() if source.get(output, {}).get("producerTask") in removed]:
            _remove_input(task, kind, name, components)


def _remove_input(task: dict[str, Any], kind: str, name: str, components: dict[str, Any]) -> None:
    """Remove an input from a task; where the task is a group, also from all of its tasks that read it."""
    del task["inputs"][kind][name]
    group = components[task["componentRef"]["name"]]
    if "dag" not in group:
        return  # a step, for which the input is optional
    del group["inputDefinitions"][kind][name]
    for inner in group["dag"]["tasks"].values():
        inputs = inner.get("inputs", {}).get(kind, {})
        for inner_name in [inner_name for inner_name, source in inputs.items() if source.get(_KINDS[kind][1]) == name]:
            _remove_input(inner, kind, inner_name, components)
