"""What a training is told: the sections, why it was started, and what it may read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml

from models.base import DeclaredModel
from monitoring.windows.records import RetrainDecision
from pipelines.compile import COMPILED
from shortlist.contracts import ShortlistError
from shortlist.runs.local_training import training_arguments
from shortlist.spec.cluster import Cluster
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


def test_a_person_starts_a_training_of_everything() -> None:
    told = training_arguments(SPEC, "", "stores")
    assert told["cause"] == {"trigger": "manual", "key": "", "reasons": [], "until": ""}


def test_a_decision_is_handed_on() -> None:
    told = training_arguments(SPEC, "", "stores", decision=DECISION)
    assert told["cause"] == {
        "trigger": "drift",
        "key": "0123456789abcdef",
        "reasons": ["drift in surface"],
        "until": "2026-01-15T00:00:00+00:00",
    }


def test_the_moment_is_the_same_however_it_is_written() -> None:
    there = UNTIL.astimezone(timezone(timedelta(hours=8)))
    assert training_arguments(SPEC, "", "stores", until=there)["cause"]["until"] == "2026-01-15T00:00:00+00:00"


def test_neither_limit_is_passed() -> None:
    for days, wanted in ((-1, "2026-01-14"), (1, "2026-01-15")):
        told = training_arguments(SPEC, "", "stores", UNTIL + timedelta(days=days), DECISION)
        assert told["cause"]["until"] == f"{wanted}T00:00:00+00:00"


def test_a_moment_without_timezone_is_refused() -> None:
    with pytest.raises(ShortlistError, match=r"until: got 2026-01-15T00:00:00, wanted a time with its offset"):
        training_arguments(SPEC, "", "stores", until=datetime(2026, 1, 15))


def tasks() -> dict[str, dict[str, Any]]:
    pipeline = next(yaml.load_all((COMPILED / "training.yaml").read_text(), yaml.CSafeLoader))
    groups = [pipeline["root"], *pipeline["components"].values()]
    return {name: task for group in groups for name, task in group.get("dag", {}).get("tasks", {}).items()}


def fed(task: dict[str, Any], parameter: str) -> bool:
    """Whether a task's inputs hold a parameter of the pipeline."""
    names = (parameter, f"pipelinechannel--{parameter}")
    given = task.get("inputs", {}).get("parameters", {}).values()
    return any(one.get("componentInputParameter") in names for one in given)


def found_by(task: dict[str, Any], part: str) -> bool:
    """Whether a task's inputs hold what `find_champion` says of a part of a parameter."""
    wanted = {"producerTask": "find-champion", "outputParameterKey": part}
    given = task.get("inputs", {}).get("parameters", {}).values()
    return any(one.get("taskOutputParameter") == wanted for one in given)


def test_the_parameters_are_few() -> None:
    told = training_arguments(SPEC, "", "stores")
    pipeline = next(yaml.load_all((COMPILED / "training.yaml").read_text(), yaml.CSafeLoader))
    parameters = pipeline["root"]["inputDefinitions"]["parameters"]
    assert set(told) == set(parameters)
    assert len(parameters) <= 17
    assert all(one["description"].endswith(".") for one in parameters.values())


def test_slices_and_compared_rows_are_parts_of_the_gates_that_no_other_part_makes_anew() -> None:
    found = tasks()
    assert found_by(found["fit-features"], "slices") and found_by(found["materialize-features"], "skew_rows")
    assert steps_fed("gates") & {"fit-features", "build-table", "materialize-features", "train"} == set()


def test_why_a_training_was_started_makes_no_data_anew() -> None:
    made = (
        "ingest",
        "validate",
        "fit-features",
        "build-table",
        "materialize-features",
        "score-champion",
        "evaluate-gates",
    )
    found = tasks()
    assert set(made) <= set(found)
    assert not [name for name in made if fed(found[name], "cause")]
    assert fed(found["train"], "cause")


def test_the_moment_reaches_validation_before_anything_is_made_of_the_log() -> None:
    found = tasks()
    assert found_by(found["validate"], "until")
    assert not found_by(found["ingest"], "until")  # reading the files again would change nothing
    readers = [
        name
        for name, task in found.items()
        if any(
            "raw_log" in one.get("taskOutputArtifact", {}).get("outputArtifactKey", "")
            for one in task.get("inputs", {}).get("artifacts", {}).values()
        )
    ]
    assert sorted(readers) == ["report", "validate"]  # the page reads the step's record alone


def test_what_kubernetes_is_asked_for_makes_no_data_anew() -> None:
    larger = load_spec(DEMO, ["runtime.cluster.tasks={train_dlrm: {memory: 64Gi}}", "runtime.cluster.partitions=4"])
    one, other = training_arguments(SPEC, "", "stores"), training_arguments(larger, "", "stores")
    assert {name for name in one if one[name] != other[name]} == {"cluster"}
    assert steps_fed("cluster") == {"roll-out"}


def test_a_model_trained_by_many_processes_is_told_of_them() -> None:
    assert not any(DeclaredModel.read(one).cluster for one in training_arguments(SPEC, "", "stores")["models"])
    many = load_spec(DEMO, ["runtime.cluster.workers={dlrm: {nodes: 2}}"])
    told = training_arguments(many, "", "stores")
    declared = {one.name: one.cluster for one in map(DeclaredModel.read, told["models"])}
    assert [name for name, cluster in declared.items() if cluster] == ["dlrm"]
    assert Cluster.model_validate_json(declared["dlrm"]).workers["dlrm"].nodes == 2


def steps_fed(parameter: str) -> set[str]:
    return {name for name, task in tasks().items() if fed(task, parameter)} - {"exit-handler-1"}
