from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from pydantic import ValidationError

from shortlist.evaluation.gates.gate_report import GateReport
from shortlist.evaluation.gates.gate_result import GateResult
from shortlist.evaluation.metrics.records import ConfidenceInterval, Measures, Scores
from shortlist.report.summary import (
    BlessedVersion,
    EngineNumbers,
    RowCounts,
    RunFailure,
    StepNumbers,
    Summary,
    combine_engines,
    gate_lines,
    model_numbers,
    write_summary,
)

MEASURES = Measures(
    model="xgboost",
    role="candidate",
    auc=ConfidenceInterval(low=0.70, value=0.71, high=0.72),
    log_loss=ConfidenceInterval(low=0.4, value=0.5, high=0.6),
    gauc=ConfidenceInterval(low=0.58, value=0.6, high=0.62),
    ndcg_at_10=ConfidenceInterval(low=0.3, value=0.4, high=0.5),
    ranked_users=80,
    one_class_users=20,
)
REPORT = GateReport.from_results("xgboost", "ab", [GateResult(name="data", passed=True, reason="9 990 valid rows")])
HISTORY = [
    {"round": 1, "validation_log_loss": 0.6, "validation_auc": 0.72},
    {"round": 2, "validation_log_loss": 0.45, "validation_auc": 0.74},
    {"round": 3, "validation_log_loss": 0.47, "validation_auc": 0.75},
]
RECORD = {"train_rows_per_s": 120_000.0, "history": HISTORY}
SUMMARY = Summary(
    spec="demo",
    rows=RowCounts(raw=1_000, valid=990, quarantined=10, train=700, validation=140, test=150),
    best_possible=Scores(auc=0.75, log_loss=0.45),
    models={"xgboost": model_numbers(MEASURES, "xgboost", RECORD)},
    gates=gate_lines((REPORT,)),
    blessed=BlessedVersion(model="xgboost", version="1"),
    steps={"ingest": StepNumbers(seconds=1.5, cached=False, peak_mib=200.0)},
)
STOPPED = Summary(
    spec="demo",
    rows=RowCounts(raw=1_000, valid=None, quarantined=None, train=None, validation=None, test=None),
    best_possible=None,
    models={},
    gates=(),
    blessed=None,
    steps={"ingest": StepNumbers(seconds=0.0, cached=True, peak_mib=None)},
    failed=RunFailure(step="validate", message="3 of 1 000 rows break 'label'"),
)
SCHEMA = Summary.model_json_schema()


@pytest.mark.parametrize("summary", [SUMMARY, STOPPED])
def test_the_file_agrees_with_the_schema(tmp_path: Path, summary: Summary) -> None:
    write_summary(tmp_path / "summary.json", summary)
    content = json.loads((tmp_path / "summary.json").read_text())
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(content, SCHEMA)
    assert Summary.model_validate(content) == summary


def test_summary_has_the_documented_keys() -> None:
    content = SUMMARY.model_dump(mode="json")
    assert content["rows"] == {
        "raw": 1_000, "valid": 990, "quarantined": 10, "train": 700, "validation": 140, "test": 150,
        "collected": None,
        "newest_day": None,
    }  # fmt: skip
    assert content["best_possible"] == {"auc": 0.75, "log_loss": 0.45}
    numbers = {"auc": 0.71, "log_loss": 0.5, "auc_low": 0.70, "auc_high": 0.72, "train_rows_per_s": 120_000.0}
    numbers |= {"validation_log_loss": 0.45, "validation_auc": 0.74}  # of the kept line
    numbers |= {"gauc": 0.6, "gauc_low": 0.58, "gauc_high": 0.62, "ranked_users": 80, "one_class_users": 20}
    numbers |= {"ndcg_at_10": 0.4, "ndcg_at_10_low": 0.3, "ndcg_at_10_high": 0.5}
    assert content["models"]["xgboost"].items() >= numbers.items()
    assert content["models"]["xgboost"]["kind"] == "xgboost"
    gate = {"name": "data", "passed": True, "reason": "9 990 valid rows"}
    assert content["gates"][0].items() >= gate.items()
    assert content["blessed"] == {"model": "xgboost", "version": "1"}
    assert content["steps"] == {"ingest": {"seconds": 1.5, "cached": False, "peak_mib": 200.0, "engine": None}}


PROMISED = {"spec", "rows", "best_possible", "models", "gates", "blessed", "steps"}


def test_schema_requires_the_documented_keys() -> None:
    required = {name: set(definition.get("required", ())) for name, definition in SCHEMA["$defs"].items()}
    assert set(SCHEMA["required"]) >= PROMISED
    assert required["RowCounts"] >= {"raw", "valid", "quarantined", "train", "validation", "test"}
    assert required["ModelNumbers"] >= {"auc", "log_loss", "auc_low", "auc_high", "train_rows_per_s"}
    assert required["GateLine"] >= {"name", "passed", "reason"}
    assert required["BlessedVersion"] >= {"model", "version"}
    assert required["StepNumbers"] >= {"seconds", "cached", "peak_mib"}


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_schema_refuses_a_file_without_a_required_key(name: str) -> None:
    content = SUMMARY.model_dump(mode="json")
    del content[name]
    with pytest.raises(jsonschema.ValidationError, match=f"'{name}' is a required property"):
        jsonschema.validate(content, SCHEMA)


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        RowCounts(raw=-1, valid=0, quarantined=0, train=0, validation=0, test=0)


def test_a_model_that_could_not_be_measured_has_no_numbers() -> None:
    unmeasured = model_numbers(Measures(model="dlrm", role="candidate", problem="one class"), "dlrm", None)
    assert unmeasured.model_dump(exclude={"role", "kind"}) == dict.fromkeys(
        (
            "auc",
            "log_loss",
            "auc_low",
            "auc_high",
            "train_rows_per_s",
            "validation_auc",
            "validation_log_loss",
            "gauc",
            "gauc_low",
            "gauc_high",
            "ndcg_at_10",
            "ndcg_at_10_low",
            "ndcg_at_10_high",
            "validation_gauc",
            "ranked_users",
            "one_class_users",
        )
    )


GPU = EngineNumbers(name="gpu", device="NVIDIA H200", driver="580.65.06", device_mib=143_771)


def test_engine_of_a_run_sums_the_operations_on_the_cpu() -> None:
    counted = GPU.model_copy(update={"queries": 7, "on_cpu": {"clip": 2}})
    joined = GPU.model_copy(update={"queries": 5, "on_cpu": {"clip": 1, "ids of texts": 4}})
    trained = EngineNumbers(name="gpu", device="NVIDIA H200")
    whole = combine_engines([EngineNumbers(name="cpu"), counted, None, joined, trained])
    assert whole is not None
    assert (whole.name, whole.device) == ("gpu", "NVIDIA H200")
    assert (whole.queries, whole.on_cpu) == (12, {"clip": 3, "ids of texts": 4})


def test_summary_has_the_reason_for_the_cpu_engine() -> None:
    cpu = EngineNumbers(name="cpu", reason="the package cudf-polars is not installed")
    assert combine_engines([None, cpu]) == cpu
    assert combine_engines([None]) is None
