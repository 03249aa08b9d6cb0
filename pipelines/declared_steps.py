"""The steps of a compiled graph that a spec declares: those for which it declares nothing are left out."""

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
"""Of a task's inputs -> how it names another task's output, and an input of the group that it is in."""


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
    return frozenset(step for step, wanted in declared.items() if not wanted)


def write_declared(compiled: Path, spec: Spec, out: Path) -> Path:
    """Write a compiled graph without the steps for which a spec declares nothing; return the file."""
    pipeline, *platform = yaml.load_all(compiled.read_text(), yaml.CSafeLoader)
    leave_out(pipeline, undeclared_steps(spec))
    out.write_text(yaml.dump_all([pipeline, *platform], Dumper=yaml.CSafeDumper, sort_keys=False))
    return out


def leave_out(pipeline: dict[str, Any], steps: Collection[str]) -> None:
    """Take steps out of a graph, and what they make out of the inputs of others, where it must be optional.

    Args:
        pipeline: A `PipelineSpec` as plain data; changed in place.
        steps: Names of components.
    """
    executors, components = pipeline["deploymentSpec"]["executors"], pipeline["components"]
    gone = {name for name, one in components.items() if _function(executors, one.get("executorLabel")) in steps}
    for group in (pipeline["root"], *components.values()):
        tasks = group.get("dag", {}).get("tasks", {})
        removed = {name for name, task in tasks.items() if task["componentRef"]["name"] in gone}
        for name in removed:
            del tasks[name]
        for task in tasks.values():
            _forget_tasks(task, removed, components)
    for name in gone:
        del executors[components.pop(name)["executorLabel"]]


def _function(executors: dict[str, Any], label: str | None) -> str:
    arguments = executors[label]["container"]["args"] if label else ["--function_to_execute", ""]
    return str(arguments[arguments.index("--function_to_execute") + 1])


def _forget_tasks(task: dict[str, Any], removed: set[str], components: dict[str, Any]) -> None:
    left = [name for name in task.get("dependentTasks", ()) if name not in removed]
    if "dependentTasks" in task:
        task["dependentTasks"] = left
    for kind, (output, _) in _KINDS.items():
        given = task.get("inputs", {}).get(kind, {})
        for name in [name for name, one in given.items() if one.get(output, {}).get("producerTask") in removed]:
            _forget_input(task, kind, name, components)


def _forget_input(task: dict[str, Any], kind: str, name: str, components: dict[str, Any]) -> None:
    """Take an input from a task; where the task is a group, also from all of its tasks that read it."""
    del task["inputs"][kind][name]
    group = components[task["componentRef"]["name"]]
    if "dag" not in group:
        return  # a step, for which the input is optional
    del group["inputDefinitions"][kind][name]
    for inner in group["dag"]["tasks"].values():
        given = inner.get("inputs", {}).get(kind, {})
        for own in [own for own, one in given.items() if one.get(_KINDS[kind][1]) == name]:
            _forget_input(inner, kind, own, components)
