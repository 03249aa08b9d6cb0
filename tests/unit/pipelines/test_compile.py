"""The committed pipelines equal what the code compiles to, and can run on a cluster."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.compile import COMPILED, compile_all, out_of_date
from shortlist.report.titles import TITLES
from shortlist.spec.spec import Spec

GRAPHS = ("training", "monitoring", "scheduled_retraining")
NAMES = (*GRAPHS, "refresh", "backfill")
OF_REFRESH = {"find_served_features", "publish_features", "refresh_releases", "recount_days", "compare_features"}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kfp's own, while it compiles


def test_the_committed_files_are_up_to_date() -> None:
    assert out_of_date() == []


def test_a_changed_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "training.yaml"
    assert path in compile_all(tmp_path)
    path.write_text(path.read_text().replace("shortlist-training", "other"))
    assert out_of_date(tmp_path) == [path]


TRAINS = [*GRAPHS, "submitted"]


@pytest.mark.parametrize("name", [*TRAINS, "refresh", "backfill"])
def test_every_training_graph_reads_previously_collected_rows(name: str) -> None:
    """Drift, the clock, a submission and a person's run: what is read of the log includes the collected rows."""
    graph = next(yaml.load_all((COMPILED / f"{name}.yaml").read_text(), yaml.CSafeLoader))
    dags = [group["dag"]["tasks"] for group in graph["components"].values() if "dag" in group]
    reading = [
        (tasks, task["inputs"]["parameters"]["collected"]["taskOutputParameter"])
        for tasks in (*dags, graph["root"]["dag"]["tasks"])
        for step, task in tasks.items()
        if step == "ingest"
    ]
    ((tasks, claim),) = reading
    finder = "find-champion" if name in TRAINS else "find-served-features"
    assert claim == {"producerTask": finder, "outputParameterKey": "collected"}
    assert tasks[finder]["cachingOptions"] == {}  # which rows there are is not in its parameters
    collecting = graph["root"]["dag"]["tasks"]
    if name == "refresh":
        assert collecting[finder]["dependentTasks"] == ["collect"]
    elif "submitted" not in name and name not in {"training", "backfill"}:
        (decides,) = (step for step, component in collecting.items() if component.get("dependentTasks") == ["collect"])
        assert decides in {"check-live-traffic", "claim-moment"}


def test_every_step_that_a_person_sees_is_a_task() -> None:
    tasks = {name: set(steps_of(COMPILED / f"{name}.yaml")) for name in NAMES}
    assert set(TITLES) - tasks["monitoring"] == OF_REFRESH | {"train_ensembles"}  # the demo has none
    published = {"ingest", "validate", "find_served_features", "publish_features"}
    assert tasks["refresh"] == published | {"collect", "fit_features", "refresh_releases"}
    assert tasks["backfill"] - {"publish"} == published | {"recount_days", "compare_features"}
    # The monitoring graph is a check before the training graph.
    assert (tasks["monitoring"] - tasks["training"]) & set(TITLES) == {"collect", "check_live_traffic"}
    assert tasks["scheduled_retraining"] ^ tasks["monitoring"] == {"check_live_traffic", "claim_moment"}


@pytest.mark.parametrize("name", [*NAMES, "tuning"])
def test_steps_and_parameters_read_well_in_kubeflows_ui(name: str) -> None:
    """The UI shows a task under its display name, and in the form of a new run the description of every parameter."""
    pipeline = yaml.load((COMPILED / f"{name}.yaml").read_text(), yaml.CSafeLoader)
    components = pipeline["components"]
    dags = [group["dag"]["tasks"] for group in (pipeline["root"], *components.values()) if "dag" in group]
    tasks = {name: task for dag in dags for name, task in dag.items()}
    steps = {n: t for n, t in tasks.items() if "executorLabel" in components[t["componentRef"]["name"]]}
    titles = {task["taskInfo"]["name"] for task in steps.values()}
    assert len(titles) == len(steps)
    assert all(re.fullmatch(r"[A-Z][A-Za-z:, ]+[a-zL]", title) for title in titles), titles
    parameters = pipeline["root"]["inputDefinitions"]["parameters"].values()
    described = [" ".join(parameter["description"].split()) for parameter in parameters]
    assert all(len(text) > 15 and text.endswith(".") and "Likewise" not in text for text in described)


def test_steps_put_out_the_types_that_kubeflows_ui_draws_and_compares() -> None:
    components = yaml.load((COMPILED / "training.yaml").read_text(), yaml.CSafeLoader)["components"]
    types = {
        (name.removeprefix("comp-"), artefact): one["artifactType"]["schemaTitle"].removeprefix("system.")
        for name, component in components.items()
        if "executorLabel" in component
        for artefact, one in component.get("outputDefinitions", {}).get("artifacts", {}).items()
    }
    types_drawn_by_the_ui = {key: kind for key, kind in types.items() if kind not in {"Dataset", "Model"}}
    assert types_drawn_by_the_ui == {
        ("train", "metrics"): "Metrics",
        ("validate-export", "metrics"): "Metrics",
        ("validate-export", "classification"): "ClassificationMetrics",
        ("evaluate-gates", "metrics"): "Metrics",
        ("report", "page"): "HTML",
    }
    assert types["train", "model"] == "Model" and types["ingest", "raw_log"] == "Dataset"


def test_a_training_has_a_parameter_per_section_and_nine_further_parameters() -> None:
    """Kubeflow's UI shows one line per parameter, in the form of a new run and in the comparison of runs."""
    training = yaml.load((COMPILED / "training.yaml").read_text(), yaml.CSafeLoader)
    parameters = set(training["root"]["inputDefinitions"]["parameters"])
    others = {"cluster", "export_limits", "lists", "log", "stores", "code", "gate_code", "cause", "with_rollout"}
    assert parameters - set(Spec.model_fields) == others


@pytest.mark.parametrize("name", NAMES)
def test_every_pod_runs_the_code_of_our_image(name: str) -> None:
    pipeline = yaml.load((COMPILED / f"{name}.yaml").read_text(), yaml.CSafeLoader)
    containers = [executor["container"] for executor in pipeline["deploymentSpec"]["executors"].values()]
    assert {container["image"] for container in containers} == {"shortlist/python-pipeline:0.1.0"}
    assert {" ".join(container["command"]) for container in containers} == {"python3 -m components.pod"}


def steps_of(path: Path) -> set[str]:
    """Return the steps of a compiled graph."""
    executors = yaml.load(path.read_text(), yaml.CSafeLoader)["deploymentSpec"]["executors"].values()
    return {executor["container"]["args"][0].partition(":")[2] for executor in executors}


def test_components_are_short_and_have_no_loops() -> None:
    paths = [
        path for path in (Path(__file__).parents[3] / "components").glob("*.py") if "import dsl" in path.read_text()
    ]
    functions = [
        node for path in paths for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    ]
    assert len(functions) >= 12
    long = {
        component.name: lines
        for component in functions
        if (lines := component.end_lineno - component.body[1].lineno) > 25  # type: ignore[operator] # ast sets it
    }
    branches = {
        component.name
        for component in functions
        if any(isinstance(node, ast.For | ast.While) for node in ast.walk(component))
    }
    assert (long, branches) == ({}, set())


@pytest.mark.parametrize("path", sorted(COMPILED.glob("*.yaml")), ids=lambda path: path.stem)
def test_no_cached_task_feeds_a_one_of(path: Path) -> None:
    """Kubeflow's driver resolves a OneOf from finished DAGs, and only launchers, which cached tasks start none of, end
    a DAG (backend/src/v2/driver/resolve.go): a run whose tasks are all cached would fail there."""
    assert cached_producers_of_one_ofs(next(yaml.load_all(path.read_text(), yaml.CSafeLoader))) == set()


def test_a_cached_producer_of_a_one_of_is_reported() -> None:
    pipeline = next(yaml.load_all((COMPILED / "training.yaml").read_text(), yaml.CSafeLoader))
    for component in pipeline["components"].values():
        for name, task in component.get("dag", {}).get("tasks", {}).items():
            if name == "register":
                task["cachingOptions"] = {"enableCache": True}
    assert cached_producers_of_one_ofs(pipeline) == {"register"}


def cached_producers_of_one_ofs(pipeline: dict[str, Any]) -> set[str]:
    """Return the names of the cached tasks whose outputs a OneOf of a compiled graph may take."""
    components = {"root": pipeline["root"], **pipeline["components"]}
    one_ofs = [
        (group, selector)
        for group in components.values()
        for output in group.get("dag", {}).get("outputs", {}).get("parameters", {}).values()
        for selector in output.get("valueFromOneof", {}).get("parameterSelectors", ())
    ]
    one_ofs += [
        (group, selector)
        for group in components.values()
        for output in group.get("dag", {}).get("outputs", {}).get("artifacts", {}).values()
        if len(output["artifactSelectors"]) > 1
        for selector in output["artifactSelectors"]
    ]
    return {task for group, selector in one_ofs for task in cached_producers(components, group, selector)}


def cached_producers(components: dict[str, Any], group: dict[str, Any], selector: dict[str, str]) -> set[str]:
    """Return the cached tasks in which a selector of a group's output ends, through nested groups."""
    task = group["dag"]["tasks"][selector["producerSubtask"]]
    component = components[task["componentRef"]["name"]]
    if "dag" not in component:
        is_cached = task.get("cachingOptions", {}).get("enableCache", False)
        return {selector["producerSubtask"]} if is_cached else set()
    kind = "parameters" if "outputParameterKey" in selector else "artifacts"
    key = selector.get("outputParameterKey") or selector["outputArtifactKey"]
    output = component["dag"]["outputs"][kind][key]
    inner_selectors = (
        output.get("artifactSelectors")
        or output.get("valueFromOneof", {}).get("parameterSelectors")
        or [output["valueFromParameter"]]
    )
    return {name for inner in inner_selectors for name in cached_producers(components, component, inner)}


@pytest.mark.parametrize("path", sorted(COMPILED.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_loop_takes_no_parameter_of_another_step_but_its_items(path: Path) -> None:
    """kfp.local gives the item in its place."""
    pipeline = next(yaml.load_all(path.read_text(), yaml.CSafeLoader))
    groups = {"root": pipeline["root"], **pipeline["components"]}
    inputs_of_other_steps = {
        f"{name}/{task}": set(task_inputs) - {inner["parameterIterator"]["items"].get("inputParameter")}
        for name, group in groups.items()
        for task, inner in group.get("dag", {}).get("tasks", {}).items()
        if "parameterIterator" in inner
        and (
            task_inputs := [
                key for key, component in inner["inputs"]["parameters"].items() if "taskOutputParameter" in component
            ]
        )
    }
    assert not any(inputs_of_other_steps.values()), inputs_of_other_steps
