"""Arguments of a training: its sections, its cause, and the rows that it may read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitoring.windows.records import RetrainDecision
from pipelines.compile import COMPILED
from shortlist.contracts import ShortlistError
from shortlist.ranking.kind import DeclaredModel
from shortlist.runs.local_training import graph_arguments
from shortlist.spec.cluster import Cluster
from shortlist.spec.gates import Gates
from shortlist.spec.load import load_spec

DEMO = Path(__file__).parents[3] / "pipelines/specs/demo.yaml"
SPEC = load_spec(DEMO)
UNTIL = datetime(2026, 1, 15, tzinfo=UTC)
DECISION = RetrainDecision(
    spec="demo",
    action="retrain",
    trigger="drift",
    key="0123456789abcdef",
    window=UNTIL - timedelta(days=1),
    until=UNTIL,
    reasons=("drift in surface",),
    made=UNTIL,
)


def test_a_manual_training_reads_all_rows() -> None:
    arguments = graph_arguments(SPEC, "", "stores")
    assert arguments["cause"] == {"trigger": "manual", "key": "", "reasons": [], "until": ""}


def test_a_decision_is_handed_on() -> None:
    arguments = graph_arguments(SPEC, "", "stores", decision=DECISION)
    assert arguments["cause"] == {
        "trigger": "drift",
        "key": "0123456789abcdef",
        "reasons": ["drift in surface"],
        "until": "2026-01-15T00:00:00+00:00",
    }


def test_the_moment_is_the_same_however_it_is_written() -> None:
    until_in_another_zone = UNTIL.astimezone(timezone(timedelta(hours=8)))
    assert (
        graph_arguments(SPEC, "", "stores", until=until_in_another_zone)["cause"]["until"]
        == "2026-01-15T00:00:00+00:00"
    )


def test_neither_limit_is_passed() -> None:
    for days, expected_day in ((-1, "2026-01-14"), (1, "2026-01-15")):
        arguments = graph_arguments(SPEC, "", "stores", UNTIL + timedelta(days=days), DECISION)
        assert arguments["cause"]["until"] == f"{expected_day}T00:00:00+00:00"


def test_a_moment_without_timezone_is_refused() -> None:
    with pytest.raises(ShortlistError, match=r"until: got 2026-01-15T00:00:00, wanted a time with its offset"):
        graph_arguments(SPEC, "", "stores", until=datetime(2026, 1, 15))


def tasks() -> dict[str, dict[str, Any]]:
    pipeline = next(yaml.load_all((COMPILED / "training.yaml").read_text(), yaml.CSafeLoader))
    groups = [pipeline["root"], *pipeline["components"].values()]
    return {name: task for group in groups for name, task in group.get("dag", {}).get("tasks", {}).items()}


def fed(task: dict[str, Any], parameter: str) -> bool:
    """Whether a task's inputs hold a parameter of the pipeline."""
    names = (parameter, f"pipelinechannel--{parameter}")
    inputs = task.get("inputs", {}).get("parameters", {}).values()
    return any(parameter.get("componentInputParameter") in names for parameter in inputs)


def found_by(task: dict[str, Any], part: str) -> bool:
    """Whether a task's inputs hold what `find_champion` says of a part of a parameter."""
    reference = {"producerTask": "find-champion", "outputParameterKey": part}
    inputs = task.get("inputs", {}).get("parameters", {}).values()
    return any(parameter.get("taskOutputParameter") == reference for parameter in inputs)


def test_the_graph_has_few_parameters() -> None:
    arguments = graph_arguments(SPEC, "", "stores")
    pipeline = next(yaml.load_all((COMPILED / "training.yaml").read_text(), yaml.CSafeLoader))
    parameters = pipeline["root"]["inputDefinitions"]["parameters"]
    assert set(parameters) <= set(arguments)
    assert len(parameters) <= 20
    assert arguments["with_rollout"] and not graph_arguments(SPEC, "", "stores", with_rollout=False)["with_rollout"]
    assert all(parameter["description"].endswith(".") for parameter in parameters.values())


def test_slices_and_compared_rows_are_parts_of_the_gates_that_no_other_part_makes_anew() -> None:
    task_by_name = tasks()
    assert found_by(task_by_name["fit-features"], "slices") and found_by(
        task_by_name["materialize-features"], "skew_rows"
    )
    assert steps_fed("gates") & {"fit-features", "build-table", "materialize-features", "train"} == set()


def test_a_change_of_other_limits_validates_no_export_anew() -> None:
    limits = Gates()
    assert limits.model_copy(update={"min_auc": 0.7}).export_limits == limits.export_limits
    assert limits.model_copy(update={"parity_rows": 20}).export_limits != limits.export_limits
    assert "validate-export" in steps_fed("export_limits") - steps_fed("gates")


def test_why_a_training_was_started_makes_no_data_anew() -> None:
    data_steps = (
        "ingest",
        "validate",
        "fit-features",
        "build-table",
        "materialize-features",
        "score-champion",
        "evaluate-gates",
    )
    task_by_name = tasks()
    assert set(data_steps) <= set(task_by_name)
    assert not [name for name in data_steps if fed(task_by_name[name], "cause")]
    assert fed(task_by_name["train"], "cause")


def test_the_moment_reaches_validation_before_anything_is_made_of_the_log() -> None:
    task_by_name = tasks()
    assert found_by(task_by_name["validate"], "until")
    assert not found_by(task_by_name["ingest"], "until")  # reading the files again would change nothing
    readers = [
        name
        for name, task in task_by_name.items()
        if any(
            "raw_log" in artefact.get("taskOutputArtifact", {}).get("outputArtifactKey", "")
            for artefact in task.get("inputs", {}).get("artifacts", {}).values()
        )
    ]
    assert sorted(readers) == ["report", "validate"]  # the page reads the step's record alone


def test_what_kubernetes_is_asked_for_makes_no_data_anew() -> None:
    larger = load_spec(DEMO, ["runtime.cluster.tasks={train_dlrm: {memory: 64Gi}}", "runtime.cluster.ttl_hours=4"])
    plain, on_cluster = graph_arguments(SPEC, "", "stores"), graph_arguments(larger, "", "stores")
    assert {name for name in plain if plain[name] != on_cluster[name]} == {"cluster"}
    assert steps_fed("cluster") == {"roll-out"}


def test_a_model_trained_by_several_processes_gets_the_cluster_section() -> None:
    assert not any(
        DeclaredModel.read(model_text).cluster for model_text in graph_arguments(SPEC, "", "stores")["models"]
    )
    distributed = load_spec(DEMO, ["runtime.cluster.workers={dlrm: {nodes: 2}}"])
    arguments = graph_arguments(distributed, "", "stores")
    declared = {model.name: model.cluster for model in map(DeclaredModel.read, arguments["models"])}
    assert [name for name, cluster in declared.items() if cluster] == ["dlrm"]
    assert Cluster.model_validate_json(declared["dlrm"]).workers["dlrm"].nodes == 2


def steps_fed(parameter: str) -> set[str]:
    return {name for name, task in tasks().items() if fed(task, parameter)} - {"exit-handler-1"}
