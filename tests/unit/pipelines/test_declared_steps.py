"""Steps for which a spec declares nothing are removed from its graphs, and the graphs stay valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.compile import COMPILED
from pipelines.declared_steps import remove_steps, undeclared_steps, write_declared
from shortlist.runs.runner import task_steps
from shortlist.spec.load import parse_spec

ROOT = Path(__file__).parents[3]
DEMO = (ROOT / "pipelines/specs/demo.yaml").read_text()
SLATES = {"build_retrieval", "build_release", "evaluate_slates"}
OPTIONAL = {"train_ensembles", *SLATES}
WITH_TRAINING = ("training", "submitted", "monitoring", "scheduled_retraining")


def graph(name: str) -> dict[str, Any]:
    pipeline: dict[str, Any] = next(yaml.load_all((COMPILED / f"{name}.yaml").read_text(), yaml.CSafeLoader))
    return pipeline


def missing(pipeline: dict[str, Any]) -> list[str]:
    """Return what tasks read and nobody gives: outputs of no task, inputs of no group, inputs that are left out."""
    wrong = []
    for group_name, group in {"root": pipeline["root"], **pipeline["components"]}.items():
        tasks, inputs_of_group = group.get("dag", {}).get("tasks", {}), group.get("inputDefinitions", {})
        for name, task in tasks.items():
            component = pipeline["components"].get(task["componentRef"]["name"])
            if component is None:
                wrong.append(f"{group_name}/{name}: no component")
                continue
            wrong += [
                f"{group_name}/{name}: after {dependency}"
                for dependency in task.get("dependentTasks", ())
                if dependency not in tasks
            ]
            for kind, single in (("parameters", "Parameter"), ("artifacts", "Artifact")):
                inputs = task.get("inputs", {}).get(kind, {})
                for key, source in inputs.items():
                    producer = source.get(f"taskOutput{single}", {}).get("producerTask")
                    outer = source.get(f"componentInput{single}")
                    if (producer and producer not in tasks) or (outer and outer not in inputs_of_group.get(kind, {})):
                        wrong.append(f"{group_name}/{name}: {key} comes from nowhere")
                for key, source in component.get("inputDefinitions", {}).get(kind, {}).items():
                    loop = task.get("parameterIterator", {}).get("itemInput")
                    if key not in inputs and not source.get("isOptional") and key != loop:
                        wrong.append(f"{group_name}/{name}: {key} is not given")
    return wrong


@pytest.mark.parametrize("name", WITH_TRAINING)
@pytest.mark.parametrize("steps", [{"train_ensembles"}, SLATES, OPTIONAL])
def test_a_graph_without_them_is_whole(name: str, steps: set[str]) -> None:
    pipeline = graph(name)
    assert not missing(pipeline)
    remove_steps(pipeline, steps)
    assert not missing(pipeline)
    named = {step.replace("_", "-") for step in steps}
    assert not [
        name for name in (*pipeline["components"], *pipeline["deploymentSpec"]["executors"]) if name[5:] in named
    ]


def test_a_removed_step_with_a_required_output_is_reported() -> None:
    pipeline = graph("training")
    remove_steps(pipeline, {"materialize_features"})
    assert [problem.rpartition("/")[2] for problem in missing(pipeline)] == [
        "evaluate-gates: skew is not given", "report: skew is not given"
    ]  # fmt: skip


def test_a_spec_without_ensembles_and_sources_runs_a_graph_without_their_steps(tmp_path: Path) -> None:
    plain = yaml.safe_load(DEMO)
    for section in ("retrieval", "filters", "ordering"):
        del plain[section]
    spec = parse_spec(yaml.safe_dump(plain))
    assert undeclared_steps(spec) == OPTIONAL | {"refresh_releases"}
    steps = set(task_steps(write_declared(COMPILED / "training.yaml", spec, tmp_path / "graph.yaml")).values())
    assert set(task_steps(COMPILED / "training.yaml").values()) - steps == OPTIONAL


def test_what_is_declared_stays() -> None:
    plain = yaml.safe_load(DEMO)
    assert undeclared_steps(parse_spec(DEMO)) == {"train_ensembles"}
    plain["models"]["both"] = {"kind": "blend", "models": ["xgboost", "dlrm"]}
    assert not undeclared_steps(parse_spec(yaml.safe_dump(plain)))
