"""A kind of model that the project does not know: logistic regression on dense features, solved by Newton's method.

It is what a package of one's own would hold; `test_installed` installs it through an entry point.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import polars as pl
from pydantic import Field
from safetensors.numpy import load_file, save_file

from models.moments import standardisation
from shortlist.contracts import Columns
from shortlist.ranking.inputs import LearningTable, features_matching
from shortlist.ranking.kind import ModelKind
from shortlist.ranking.matrix import float_matrix
from shortlist.ranking.ranker import FitOutcome, OnEpoch, Ranker
from shortlist.ranking.record import TrainedModel
from shortlist.ranking.validation import probabilities, validation_metrics
from shortlist.serving.export.graph import FeatureGraph
from shortlist.spec.base import Names
from shortlist.spec.models import ModelSection
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable

_WEIGHTS: Final = "linear.safetensors"


class LinearModel(ModelSection):
    """Logistic regression on dense features."""

    kind: Literal["linear"] = "linear"
    """Logistic regression on dense features."""
    features: Names = Field(min_length=1)
    """Features it reads; `*` and `?` match several."""
    steps: int = Field(default=6, ge=1, le=50)
    """Steps of Newton's method."""
    penalty: float = Field(default=1.0, gt=0)
    """L2 penalty on the weights."""


class LinearRanker(Ranker[LinearModel]):
    """Weights of standardised features; null is the mean."""

    kind = "linear"
    section_type = LinearModel

    def _learning(self, table: DayTable) -> LearningTable:
        return LearningTable(table, features_matching(table, self.section.features))

    def _fit(self, learning: LearningTable, runtime: Runtime, on_epoch: OnEpoch, champion: Path | None) -> FitOutcome:
        frames = list(learning.frames("train"))
        mean, scale = standardisation(float_matrix(frame, learning.features) for frame in frames)
        self._weights = {"mean": mean, "scale": scale, "w": np.zeros(len(mean) + 1, np.float32)}
        labels = np.concatenate([frame[Columns.LABEL].to_numpy() for frame in frames])
        rows = np.concatenate([self._standard(float_matrix(frame, learning.features)) for frame in frames])
        weights = np.zeros(rows.shape[1])
        for _ in range(self.section.steps):
            chances = probabilities(rows @ weights)
            gradient = rows.T @ (chances - labels) + self.section.penalty * weights
            curvature = (rows * (chances * (1 - chances))[:, None]).T @ rows
            weights -= np.linalg.solve(curvature + self.section.penalty * np.eye(len(weights)), gradient)
        self._weights["w"] = weights.astype(np.float32)
        validation_rows = pl.concat(learning.frames("validation"))
        scores = self._scores(float_matrix(validation_rows, learning.features))
        history = ({"epoch": 1, **validation_metrics(validation_rows[Columns.LABEL].to_numpy(), scores)},)
        return FitOutcome(history, best=1, epochs=1)

    def _predict(self, frame: pl.DataFrame) -> np.ndarray:
        return self._scores(float_matrix(frame, self.record.features))

    def _scores(self, floats: np.ndarray) -> np.ndarray:
        return probabilities(self._standard(floats) @ self._weights["w"])

    def _standard(self, floats: np.ndarray) -> np.ndarray:
        standard = np.nan_to_num((floats - self._weights["mean"]) * self._weights["scale"], nan=0.0)
        return np.concatenate([standard, np.ones((len(standard), 1), np.float32)], axis=1)

    def _write(self, folder: Path) -> None:
        save_file(self._weights, folder / _WEIGHTS)

    def _read(self, folder: Path) -> None:
        self._weights = load_file(folder / _WEIGHTS)


def add_line(graph: FeatureGraph, record: TrainedModel, folder: Path) -> str:
    """Add the features and the line; return the tensor of its log-odds, shape (rows, 1)."""
    weights: dict[str, Any] = load_file(folder / _WEIGHTS)
    add = graph.nodes.add
    floats = graph.floats([feature.name for feature in record.features])
    scaled = add("Mul", add("Sub", floats, weights["mean"][None]), weights["scale"][None])
    filled = add("Where", add("IsNaN", scaled), np.zeros(1, np.float32), scaled)
    return add("Gemm", filled, weights["w"][:-1, None], weights["w"][-1:])


KIND: Final = ModelKind(section=LinearModel, ranker="linear_kind:LinearRanker", export="linear_kind:add_line")
