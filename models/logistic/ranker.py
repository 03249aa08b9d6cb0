"""Logistic regression on hashed one-hot ids, standardised floats and their bins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from safetensors.numpy import load_file, save_file
from scipy import sparse

from models.inputs import LearningTable, Part, chosen, weights_of
from models.logistic.section import LogisticModel
from models.matrix import float_matrix
from models.moments import standardisation
from models.one_hot import OneHot, bin_edges, floats_of
from models.ranker import OnEpoch, Outcome, Ranker
from models.validation import EarlyStopping, probabilities, quality
from shortlist.contracts import Columns
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.system.progress import progress

_WEIGHTS = "weights.safetensors"
_BUCKETS = 2**18
_CHOOSE_AFTER = 3
"""Passes after which one penalty and one way to make rows are kept: bins learn faster and end lower."""
_EDGE_ROWS = 200_000
"""Training rows whose quantiles are the edges of bins."""
_MOST_KEPT = 256 * 2**20
"""Bytes of sparse rows, of each way to make them, that are kept from one pass to the next; others are made again."""


class LogisticRanker(Ranker[LogisticModel]):
    """Averaged stochastic gradient descent (Polyak and Juditsky, 1992) on the log loss, file by file."""

    kind = "logistic"
    section_type = LogisticModel
    one_hot: OneHot
    """How rows become vectors."""
    coefficients: np.ndarray
    """Of the floats, then of the buckets, float32."""
    intercept: np.ndarray
    """Float32, shape (1,)."""

    def _learning(self, table: DayTable) -> LearningTable:
        return LearningTable(table, chosen(table, self.section.features))

    def _fit(self, learning: LearningTable, runtime: Runtime, on_epoch: OnEpoch, champion: Path | None) -> Outcome:
        rows = {bins: _Rows(learning, self._encoding(learning, bins)) for bins in dict.fromkeys(self.section.bins)}
        trials = {(bins, l2): _descent(l2, runtime.seed) for bins in rows for l2 in self.section.l2}
        history: list[dict[str, Any]] = []
        stopping = EarlyStopping(patience=1)
        for epoch in range(1, self.section.epochs + 1):
            for bins, own in rows.items():
                tried = tuple(descent for (its, _), descent in trials.items() if its == bins)
                self._pass(tried, own, ("train",), f"epoch {epoch}/{self.section.epochs}")
            found = {trial: self._validated(one, rows[trial[0]]) for trial, one in trials.items()}
            bins, l2 = min(found, key=lambda trial: float(found[trial][0]["validation_log_loss"] or 0))
            line, scores = found[bins, l2]
            history.append({"epoch": epoch, "bins": bins, "l2": l2, **line})
            on_epoch(history[-1])
            if stopping.improved(epoch, history[-1]["validation_log_loss"]):
                best, held_out = (bins, l2, *self._weights(trials[bins, l2])), scores
            if epoch >= _CHOOSE_AFTER:
                rows, trials = {bins: rows[bins]}, {(bins, l2): trials[bins, l2]}
            if stopping.patience_ended:
                break
        bins, l2, self.coefficients, self.intercept = best
        self.one_hot = rows[bins].one_hot
        if self.section.refit:
            if any(one.served is not None for one in learning.features):
                held_out = self._held_out(learning)
            self._refit(_descent(l2, runtime.seed), rows[bins], stopping.best_epoch)
        passes = len(history) + (stopping.best_epoch if self.section.refit else 0)
        return Outcome(
            tuple(history), passes=passes, best=stopping.best_epoch, epochs=len(history),
            held_out=held_out if self.section.refit else None,
        )  # fmt: skip

    def _encoding(self, learning: LearningTable, bins: int) -> OneHot:
        floats = floats_of(learning.features)
        mean, scale = standardisation(float_matrix(frame, floats) for frame in learning.frames("train"))
        edges = self._edges(learning, bins) if bins else None
        return OneHot(learning.features, mean, scale, _BUCKETS, edges)

    def _edges(self, learning: LearningTable, bins: int) -> np.ndarray:
        """Return the edges of bins: quantiles of rows from all training days, taken at equal distances."""
        numbers = [one for one in learning.features if one.kind == "dense"]
        step = -(-learning.rows("train") // _EDGE_ROWS)
        taken = [float_matrix(frame.gather_every(step), numbers) for frame in learning.frames("train")]
        return bin_edges(np.concatenate(taken), bins)

    def _pass(self, descents: tuple[Any, ...], rows: _Rows, parts: tuple[Part, ...], title: str) -> None:
        with progress(f"{self.name} {title}", total=rows.learning.rows(*parts)) as advance:
            for labels, vectors, weights in rows.of(*parts):
                for descent in descents:
                    descent.partial_fit(vectors, labels, classes=np.array([0, 1]), sample_weight=weights)
                advance(len(labels), "")

    def _refit(self, descent: Any, rows: _Rows, passes: int) -> None:
        for number in range(1, passes + 1):
            self._pass((descent,), rows, ("train", "validation"), f"refit {number}/{passes}")
        self.coefficients, self.intercept = self._weights(descent)

    def _weights(self, descent: Any) -> tuple[np.ndarray, np.ndarray]:
        return descent.coef_[0].astype(np.float32), descent.intercept_.astype(np.float32)

    def _validated(self, descent: Any, rows: _Rows) -> tuple[dict[str, float | None], np.ndarray]:
        """Return how well the validation days are scored, and their scores."""
        coefficients, intercept = self._weights(descent)
        labels, scores, weights = [], [], []
        for label, vectors, weight in rows.of("validation"):
            labels.append(label)
            scores.append(probabilities(vectors @ coefficients + intercept))
            weights += [weight] if weight is not None else []
        every = np.concatenate(scores)
        return quality(np.concatenate(labels), every, np.concatenate(weights) if weights else None), every

    def _predict(self, frame: pl.DataFrame) -> np.ndarray:
        return probabilities(self.one_hot.rows(frame) @ self.coefficients + self.intercept)

    def _write(self, folder: Path) -> None:
        weights = {"mean": self.one_hot.mean, "scale": self.one_hot.scale}
        weights |= {} if self.one_hot.edges is None else {"edges": self.one_hot.edges}
        save_file({**weights, "coefficients": self.coefficients, "intercept": self.intercept}, folder / _WEIGHTS)

    def _read(self, folder: Path) -> None:
        weights = load_file(folder / _WEIGHTS)
        mean, self.coefficients = weights["mean"], weights["coefficients"]
        buckets = len(self.coefficients) - len(mean)
        self.one_hot = OneHot(self.record.features, mean, weights["scale"], buckets, weights.get("edges"))
        self.intercept = weights["intercept"]


def _descent(l2: float, seed: int) -> Any:
    from sklearn.linear_model import SGDClassifier

    return SGDClassifier(
        loss="log_loss", alpha=l2, average=True, random_state=seed, learning_rate="invscaling", eta0=0.05, power_t=0.25
    )


class _Rows:
    """Rows of a table as labels and vectors, file by file; the first ones are kept, up to a bound."""

    def __init__(self, learning: LearningTable, one_hot: OneHot) -> None:
        self.learning = learning
        self.one_hot = one_hot
        self._kept: dict[Path, tuple[np.ndarray, sparse.csr_matrix, np.ndarray | None]] = {}
        self._bytes = 0

    def of(self, *parts: Part) -> Iterator[tuple[np.ndarray, sparse.csr_matrix, np.ndarray | None]]:
        """Give labels, vectors of floats and buckets, and weights of the rows, for every file of some parts."""
        for path in self.learning.paths(*parts):
            if path in self._kept:
                yield self._kept[path]
                continue
            frame = self.learning.read(path)
            made = frame[Columns.LABEL].to_numpy(), self.one_hot.rows(frame), weights_of(frame)
            size = made[1].data.nbytes + made[1].indices.nbytes + made[1].indptr.nbytes
            if self._bytes + size <= _MOST_KEPT:
                self._kept[path], self._bytes = made, self._bytes + size
            yield made
