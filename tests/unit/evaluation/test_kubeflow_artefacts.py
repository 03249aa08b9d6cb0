"""Kubeflow's artefacts of a model's test rows."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import polars as pl
import pytest
from kfp.dsl import ClassificationMetrics

from shortlist.contracts import Columns, Files
from shortlist.report.kubeflow_artefacts import show_classification

SCORES = [0.1, 0.2, 0.4, 0.4, 0.6, 0.9]
LABELS = [0, 0, 1, 0, 1, 1]


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    pl.DataFrame({
        Columns.IMPRESSION: range(6), Columns.DAY: [date(2026, 1, 1)] * 6, "label": LABELS, "score": SCORES,
        "split": ["test"] * 6,
    }).write_parquet(tmp_path / Files.SCORES)  # fmt: skip
    return tmp_path


@pytest.mark.parametrize(
    ("declared", "threshold", "matrix"),
    [
        (None, 0.5, [[3, 0], [1, 2]]),  # half of the rows are positive
        (0.4, 0.4, [[2, 1], [0, 3]]),  # the threshold itself counts as positive
        (0.7, 0.7, [[3, 0], [2, 1]]),
    ],
)
def test_the_confusion_matrix_is_that_of_the_declared_threshold(
    scores: Path, tmp_path: Path, declared: float | None, threshold: float, matrix: list[list[int]]
) -> None:
    artefact = ClassificationMetrics(name="classification", uri=str(tmp_path / "classification"))
    show_classification(artefact, scores, declared)
    assert artefact.metadata["threshold"] == threshold
    assert [line["row"] for line in artefact.metadata["confusionMatrix"]["rows"]] == matrix
