"""A kind of model without skill: its scores are constant, of two values, saturated, or NaN, as declared."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import numpy as np
import polars as pl
from pydantic import Field

from shortlist.ranking.inputs import LearningTable, features_matching
from shortlist.ranking.kind import ModelKind
from shortlist.ranking.matrix import float_matrix
from shortlist.ranking.ranker import FitOutcome, OnEpoch, Ranker
from shortlist.ranking.record import TrainedModel
from shortlist.ranking.validation import probabilities
from shortlist.serving.export.graph import FeatureGraph
from shortlist.spec.base import Names
from shortlist.spec.models import ModelSection
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable

Scores = Literal["constant", "two-valued", "saturated", "NaN"]
LOG_ODDS: Final[dict[Scores, tuple[float, float]]] = {
    "constant": (-1.0, -1.0), "two-valued": (-1.2, -0.8), "saturated": (-200.0, 200.0), "NaN": (-1.0, np.nan),
}  # fmt: skip
"""Scores of rows whose first feature is at most 3.5, and of the others."""


class StuckModel(ModelSection):
    """Log-odds of one of two values, by the first feature."""

    kind: Literal["stuck"] = "stuck"
    """Log-odds of one of two values, by the first feature."""
    features: Names = Field(min_length=1)
    """Features it reads."""
    scores: Scores
    """Kind of its scores."""


class StuckRanker(Ranker[StuckModel]):
    """Needs no weights."""

    kind = "stuck"
    section_type = StuckModel

    def _learning(self, table: DayTable) -> LearningTable:
        return LearningTable(table, features_matching(table, self.section.features))

    def _fit(self, learning: LearningTable, runtime: Runtime, on_epoch: OnEpoch, champion: Path | None) -> FitOutcome:
        return FitOutcome(epochs=1)

    def _predict(self, frame: pl.DataFrame) -> np.ndarray:
        low, high = LOG_ODDS[self.section.scores]
        return probabilities(np.where(float_matrix(frame, self.record.features)[:, 0] > 3.5, high, low))

    def _write(self, folder: Path) -> None:
        pass

    def _read(self, folder: Path) -> None:
        pass


def add_line(graph: FeatureGraph, record: TrainedModel, folder: Path) -> str:
    """Add the features and the choice; return the tensor of the log-odds, shape (rows, 1)."""
    low, high = (np.array([[value]], np.float32) for value in LOG_ODDS[record.params["scores"]])
    add = graph.nodes.add
    first = add("Gather", graph.floats([feature.name for feature in record.features]), np.array([0]), axis=1)
    return add("Where", add("Greater", first, np.array([[3.5]], np.float32)), high, low)


KIND: Final = ModelKind(section=StuckModel, ranker="stuck_kind:StuckRanker", export="stuck_kind:add_line")
