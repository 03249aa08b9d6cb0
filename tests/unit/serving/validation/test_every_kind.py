"""Every kind of served model: its scores on a real Triton equal training's, also with calibration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from models.registry import KINDS
from shortlist.contracts import Files
from shortlist.evaluation.gates.export_gates import parity_gate
from shortlist.evaluation.gates.integrity import verify_model_folder
from shortlist.ranking.ranker import MemberFiles
from shortlist.ranking.registry import kind_of
from shortlist.ranking.saved_models import load_ranker
from shortlist.serving.export.signature import FOLDER, Signature
from shortlist.serving.validation.parity import compare_scores, score_exported
from shortlist.serving.validation.served_rows import ServedRows, draw_reference_rows
from shortlist.serving.validation.validate_export import validate_export
from shortlist.spec.gates import Gates
from shortlist.spec.serving import Serving
from shortlist.storage.artefacts import folder_digest
from shortlist.storage.tables import DayTable
from shortlist.training.export import export, pack
from shortlist.training.train import train

NUMBERS = ["*_log", "hour_*", "*_rate", "*_seen", "surface_id"]
IDS = {"features": ["*_log", "*_id"], "embedding_dim": 8, "epochs": 1, "batch_size": 512}
SETTINGS_BY_KIND: dict[str, dict[str, Any]] = {
    "xgboost": {"features": NUMBERS, "rounds": 10, "calibration": "isotonic"},
    "lightgbm": {"features": NUMBERS, "rounds": 10},
    "catboost": {
        "features": ["*_log", "*_rate", "user_id_*", "item_id_id", "surface_id"],
        "rounds": 10,
        "max_ctr_complexity": 2,
    },
    "dcn": {**IDS, "cross_rank": 16, "calibration": "platt"},
    "wide_deep": IDS,
    "finalnet": {**IDS, "calibration": "isotonic"},
    "din": {**IDS, "history": "user_items", "target": "item_id_id"},
    "logistic": {"features": ["*"], "epochs": 2, "bins": [24], "role": "candidate"},
    "blend": {"models": ["xgboost", "catboost", "dcn", "logistic"]},
}
FULL_RANK = "dcn of full rank"
CASES = SETTINGS_BY_KIND | {FULL_RANK: {"kind": "dcn", **IDS, "cross_rank": None}}
NOT_LONG = {"xgboost", "blend"}
"""Of these, `make test` tries every way of export: trees, of numbers and of categories, and a network and a regression,
as members of the blend."""
ELSEWHERE = {"dlrm"}
"""`test_validate_export` tries them."""


def test_every_served_kind_has_a_case() -> None:
    served = {name for name in KINDS if kind_of(name).export}
    assert served == set(SETTINGS_BY_KIND) | ELSEWHERE


def train_and_export(kind: str, table: DayTable, trained: Any, folder: Path) -> MemberFiles:
    section = kind_of(kind).section.model_validate({"kind": kind, **SETTINGS_BY_KIND[kind]})
    train(kind, section, table, trained.spec.runtime, folder / "model", folder / "scores")
    return MemberFiles(folder / "model", folder / "scores")


def marked_long_beyond(cases: Mapping[str, Any], short_cases: Collection[str]) -> list[Any]:
    """Return cases as parameters, the others as long tests."""
    return [case if case in short_cases else pytest.param(case, marks=pytest.mark.long) for case in cases]


@pytest.mark.parametrize("case", marked_long_beyond(CASES, NOT_LONG))
def test_triton_gives_the_scores_of_training(trained: Any, limits: Gates, tmp_path: Path, case: str) -> None:
    declared = {"kind": case, **CASES[case]}
    kind = declared["kind"]
    section = kind_of(kind).section.model_validate(declared)
    table = DayTable.open(trained.root / "table", Files.TABLE)
    model, scores = tmp_path / "model", tmp_path / "scores"
    members = {name: train_and_export(name, table, trained, tmp_path / name) for name in section.members}
    train(kind, section, table, trained.spec.runtime, model, scores, members=members)
    pack(model, trained.fitted)
    export(model, "demo")
    verify_model_folder(model)
    assert (Signature.read(model / FOLDER).calibration is not None) == ("calibration" in declared)
    validation = validate_export(
        model, scores, trained.log, trained.fitted, limits, Serving(), 17, tmp_path / "validation"
    )
    verdict = parity_gate(validation, folder_digest(model), 0, limits)
    assert verdict.passed, verdict.message
    assert "400 test rows score the same" in verdict.reason


VECTORS: dict[str, dict[str, Any]] = {
    "dlrm": {**IDS, "bottom_mlp": [16], "top_mlp": [16], "vectors": {"norm": "l2", "combine": "concat"}},
    "wide_deep": {**IDS, "deep_mlp": [16], "vectors": {"norms": {"text_vector_vector": "l2"}, "width": 6}},
}


@pytest.mark.parametrize("kind", marked_long_beyond(VECTORS, {"dlrm"}))
def test_triton_normalises_and_projects_vectors_like_training(
    trained: Any, limits: Gates, tmp_path: Path, kind: str
) -> None:
    declared = {"of": ["text_vector_vector", "image_vector_vector"], **VECTORS[kind]["vectors"]}
    section = kind_of(kind).section.model_validate({"kind": kind, **VECTORS[kind], "vectors": declared})
    model, scores = tmp_path / "model", tmp_path / "scores"
    train(kind, section, DayTable.open(trained.root / "table", Files.TABLE), trained.spec.runtime, model, scores)
    pack(model, trained.fitted)
    export(model, "demo")
    validation = validate_export(
        model, scores, trained.log, trained.fitted, limits, Serving(), 17, tmp_path / "validation"
    )
    verdict = parity_gate(validation, folder_digest(model), 0, limits)
    assert verdict.passed, verdict.message


@pytest.mark.parametrize("kind", ["xgboost", pytest.param("dcn", marks=pytest.mark.long)])
def test_triton_gives_the_scores_of_training_where_a_value_is_fixed(
    trained: Any, limits: Gates, tmp_path: Path, kind: str
) -> None:
    features = ["shown_at_training", "surface_id"]  # few, so that the trees split by it
    section = kind_of(kind).section.model_validate({"kind": kind, **SETTINGS_BY_KIND[kind], "features": features})
    table = DayTable.open(trained.root / "table", Files.TABLE)
    model, scores = tmp_path / "model", tmp_path / "scores"
    train(kind, section, table, trained.spec.runtime, model, scores)
    pack(model, trained.fitted)
    export(model, "demo")
    validation = validate_export(
        model, scores, trained.log, trained.fitted, limits, Serving(), 17, tmp_path / "validation"
    )
    verdict = parity_gate(validation, folder_digest(model), 0, limits)
    assert verdict.passed, verdict.message
    assert "shown_at" not in Signature.read(model / FOLDER).model_dump_json()  # no request sends it
    # Scores with the rows' own values are other scores, and are found.
    path, rows = scores / Files.SCORES, pl.concat([frame for _, frame in table.frames()])
    fixed_scores = rows.select("impression_id", pl.Series("score", load_ranker(model).predict_with_logged_values(rows)))
    pl.read_parquet(path).drop("score").join(fixed_scores, on="impression_id").write_parquet(path)
    served = ServedRows(model, trained.log, trained.fitted, draw_reference_rows(scores, 400, 17))
    batches = served.batches()
    validation = compare_scores(served, batches, score_exported(model, batches), 1e-5)
    assert validation.max_difference is not None and validation.max_difference > 0.005


FURTHER: dict[str, dict[str, Any]] = {
    "xgboost": {**SETTINGS_BY_KIND["xgboost"], "labels": ["long_view"]},
    "logistic": {**SETTINGS_BY_KIND["logistic"], "labels": ["long_view"]},
    "dcn": {**SETTINGS_BY_KIND["dcn"], "labels": ["long_view"], "sharing": "mmoe"},
}


@pytest.mark.parametrize("kind", marked_long_beyond(FURTHER, {"dcn"}))
def test_triton_gives_the_scores_of_every_label(trained: Any, limits: Gates, tmp_path: Path, kind: str) -> None:
    section = kind_of(kind).section.model_validate({"kind": kind, **FURTHER[kind]})
    model, scores = tmp_path / "model", tmp_path / "scores"
    train(kind, section, DayTable.open(trained.root / "table", Files.TABLE), trained.spec.runtime, model, scores)
    pack(model, trained.fitted)
    export(model, "demo")
    validation = validate_export(
        model, scores, trained.log, trained.fitted, limits, Serving(), 17, tmp_path / "validation"
    )
    verdict = parity_gate(validation, folder_digest(model), 0, limits)
    assert verdict.passed, verdict.message
    assert validation is not None and validation.infra is not None and validation.infra.failed == 0
    # What was scored otherwise in training is found, though the label's own score is the same.
    path = scores / Files.SCORES
    pl.read_parquet(path).with_columns(pl.col("score_long_view") + 0.01).write_parquet(path)
    served = ServedRows(model, trained.log, trained.fitted, draw_reference_rows(scores, 400, 17))
    batches = served.batches()
    validation = compare_scores(served, batches, score_exported(model, batches), 1e-5)
    assert validation.max_difference == pytest.approx(0.01, abs=1e-4)
