"""The logistic-regression baseline: hashed one-hot ids and standardised floats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from safetensors.numpy import load_file, save_file

from models.inputs import LearningTable, chosen
from models.logistic.section import LogisticModel
from models.matrix import float_matrix
from models.moments import standardisation
from models.one_hot import OneHot, floats_of
from models.ranker import OnEpoch, Outcome, Ranker
from models.validation import EarlyStopping, probabilities, quality
from shortlist.contracts import Columns
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.system.progress import progress

_WEIGHTS = "weights.safetensors"
_BUCKETS = 2**18
_MOST_EPOCHS = 3


class LogisticRanker(Ranker[LogisticModel]):
    """Averaged stochastic gradient descent (Polyak and Juditsky, 1992) on the log loss, file by file."""

    kind = "logistic"
    section_type = LogisticModel
    _one_hot: OneHot
    _coefficients: np.ndarray
    _intercept: np.ndarray

    def _learning(self, table: DayTable) -> LearningTable:
        return LearningTable(table, chosen(table, self.section.features))

    def _fit(self, learning: LearningTable, runtime: Runtime, on_epoch: OnEpoch, champion: Path | None) -> Outcome:
        from sklearn.linear_model import SGDClassifier

        floats = floats_of(learning.features)
        mean, scale = standardisation(float_matrix(frame, floats) for frame in learning.frames("train"))
        self._one_hot = OneHot(learning.features, mean, scale, _BUCKETS)
        descent = SGDClassifier(
            loss="log_loss", alpha=1e-7, average=True, random_state=runtime.seed,
            learning_rate="invscaling", eta0=0.05, power_t=0.25,
        )  # fmt: skip
        history: list[dict[str, Any]] = []
        stopping = EarlyStopping(patience=1)
        for epoch in range(1, _MOST_EPOCHS + 1):
            self._pass(descent, learning, epoch)
            history.append({"epoch": epoch, **self._validated(learning)})
            on_epoch(history[-1])
            if stopping.improved(epoch, history[-1]["validation_log_loss"]):
                best = self._coefficients, self._intercept
            if stopping.patience_ended:
                break
        self._coefficients, self._intercept = best
        return Outcome(tuple(history), passes=len(history), best=stopping.best_epoch, epochs=len(history))

    def _pass(self, descent: Any, learning: LearningTable, epoch: int) -> None:
        with progress(f"{self.name} epoch {epoch}/{_MOST_EPOCHS}", total=learning.rows("train")) as advance:
            for frame in learning.frames("train"):
                labels = frame[Columns.LABEL].to_numpy()
                descent.partial_fit(self._one_hot.rows(frame), labels, classes=np.array([0, 1]))
                advance(frame.height, "")
        self._coefficients = descent.coef_[0].astype(np.float32)
        self._intercept = descent.intercept_.astype(np.float32)

    def _validated(self, learning: LearningTable) -> dict[str, float | None]:
        labels, scores = [], []
        for frame in learning.frames("validation"):
            labels.append(frame[Columns.LABEL].to_numpy())
            scores.append(self._predict(frame))
        return quality(np.concatenate(labels), np.concatenate(scores))

    def _predict(self, frame: pl.DataFrame) -> np.ndarray:
        return probabilities(self._one_hot.rows(frame) @ self._coefficients + self._intercept)

    def _write(self, folder: Path) -> None:
        weights = {"mean": self._one_hot.mean, "scale": self._one_hot.scale}
        save_file({**weights, "coefficients": self._coefficients, "intercept": self._intercept}, folder / _WEIGHTS)

    def _read(self, folder: Path) -> None:
        weights = load_file(folder / _WEIGHTS)
        mean, self._coefficients = weights["mean"], weights["coefficients"]
        self._one_hot = OneHot(self.record.features, mean, weights["scale"], len(self._coefficients) - len(mean))
        self._intercept = weights["intercept"]
