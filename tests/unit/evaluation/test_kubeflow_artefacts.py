"""Kubeflow's artefacts of a model's test rows."""

from __future__ import annotations

import tracemalloc
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from kfp.dsl import ClassificationMetrics
from sklearn.metrics import roc_curve

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


def random_scores(folder: Path, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Write a scores file of so many test rows; return their labels and scores."""
    random = np.random.default_rng(1)
    scores = random.beta(1, 3, rows).astype(np.float32)
    labels = (random.random(rows) < scores).astype(np.int8)
    frame = pl.DataFrame({Columns.IMPRESSION: np.arange(rows), "label": labels, "score": scores})
    frame.with_columns(split=pl.lit("test")).write_parquet(folder / Files.SCORES, row_group_size=50_000)
    return labels, scores


def test_the_points_of_the_curve_lie_on_the_exact_curve(tmp_path: Path) -> None:
    labels, scores = random_scores(tmp_path, 200_000)
    artefact = ClassificationMetrics(name="classification", uri=str(tmp_path / "classification"))
    show_classification(artefact, tmp_path, None)
    points = artefact.metadata["confidenceMetrics"]
    assert len(points) == 51
    fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
    for point in points:  # rounded to six digits, and a row of 200 000 is 5e-6
        assert np.min(np.abs(fpr - point["falsePositiveRate"]) + np.abs(tpr - point["recall"])) < 2e-6
    rates = np.array([point["falsePositiveRate"] + point["recall"] for point in points])
    assert np.diff(rates[1:]).max() < 0.1  # quantiles: no part of the curve is without points


def test_memory_of_the_curve_does_not_grow_with_rows(tmp_path: Path) -> None:
    peaks = []
    for rows in (200_000, 1_200_000):
        random_scores(tmp_path, rows)
        tracemalloc.start()
        show_classification(
            ClassificationMetrics(name="classification", uri=str(tmp_path / "classification")), tmp_path, None
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
