"""Logistic regression on hashed one-hot ids, standardised floats and their bins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from safetensors.numpy import load_file, save_file
from scipy import sparse

from models.logistic.section import LogisticModel
from models.moments import standardisation
from models.one_hot import OneHot, bin_edges, select_floats
from shortlist.contracts import Columns
from shortlist.ranking.inputs import LearningTable, Part, features_matching, weights_of
from shortlist.ranking.matrix import float_matrix
from shortlist.ranking.ranker import FitOutcome, OnEpoch, Ranker
from shortlist.ranking.validation import EarlyStopping, probabilities, validation_metrics
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.system.progress import progress

_WEIGHTS = "weights.safetensors"
_BUCKETS = 2**18
_CHOOSE_AFTER = 3
"""Passes after which only the best setting of bins and L2 penalty is trained further."""
_EDGE_ROWS = 200_000
"""Training rows whose quantiles give the edges of bins."""
_UNKNOWN_PRIOR_ROWS = 200
"""Rows with an unknown id whose own coefficient counts as much as the mean of the known ones."""
_MAX_CACHED_BYTES = 256 * 2**20
"""Bytes of encoded rows per setting of bins that are cached between passes; other rows are encoded in every pass."""


class LogisticRanker(Ranker[LogisticModel]):
    """Averaged stochastic gradient descent (Polyak and Juditsky, 1992) on the log loss, file by file."""

    kind = "logistic"
    section_type = LogisticModel
    one_hot: OneHot
    """Encoding of rows as vectors."""
    coefficients: np.ndarray
    """Coefficients of the floats, then of the hash buckets, float32."""
    intercept: np.ndarray
    """Intercept, float32, shape (1,)."""

    def _learning(self, table: DayTable) -> LearningTable:
        return LearningTable(table, features_matching(table, self.section.features))

    def _fit(self, learning: LearningTable, runtime: Runtime, on_epoch: OnEpoch, champion: Path | None) -> FitOutcome:
        encoded_rows_by_bins = {
            bins: _EncodedRows(learning, self._encoding(learning, bins)) for bins in dict.fromkeys(self.section.bins)
        }
        solvers = {
            (bins, l2): _make_solver(l2, runtime.seed, encoded_rows)
            for bins, encoded_rows in encoded_rows_by_bins.items()
            for l2 in self.section.l2
        }
        history: list[dict[str, Any]] = []
        stopping = EarlyStopping(patience=1)
        for epoch in range(1, self.section.epochs + 1):
            for bins, encoded_rows in encoded_rows_by_bins.items():
                solvers_with_bins = tuple(solver for (solver_bins, _), solver in solvers.items() if solver_bins == bins)
                self._train_pass(solvers_with_bins, encoded_rows, ("train",), f"epoch {epoch}/{self.section.epochs}")
            validation_by_setting = {
                setting: self._validate(solver, encoded_rows_by_bins[setting[0]]) for setting, solver in solvers.items()
            }
            bins, l2 = min(
                validation_by_setting,
                key=lambda setting: float(validation_by_setting[setting]["validation_log_loss"] or 0),
            )
            history.append({"epoch": epoch, "bins": bins, "l2": l2, **validation_by_setting[bins, l2]})
            on_epoch(history[-1])
            if stopping.improved(epoch, history[-1]["validation_log_loss"]):
                best = bins, l2, *self._weights(solvers[bins, l2])
            if stopping.patience_ended:
                break
            if epoch >= _CHOOSE_AFTER:
                encoded_rows_by_bins, solvers = {bins: encoded_rows_by_bins[bins]}, {(bins, l2): solvers[bins, l2]}
        bins, l2, self.coefficients, self.intercept = best
        self.one_hot = encoded_rows_by_bins[bins].one_hot
        self._set_unknown(learning)
        held_out = None
        if self.section.refit:
            held_out = self._score_held_out(learning)
            solver = _make_solver(l2, runtime.seed, encoded_rows_by_bins[bins])
            self._refit(solver, encoded_rows_by_bins[bins], stopping.best_epoch)
            self._set_unknown(learning)
        passes = len(history) + (stopping.best_epoch if self.section.refit else 0)
        return FitOutcome(
            tuple(history), passes=passes, best=stopping.best_epoch, epochs=len(history),
            held_out=held_out,
        )  # fmt: skip

    def _encoding(self, learning: LearningTable, bins: int) -> OneHot:
        floats = select_floats(learning.features)
        mean, scale = standardisation(float_matrix(frame, floats) for frame in learning.frames("train"))
        edges = self._edges(learning, bins) if bins else None
        return OneHot(learning.features, mean, scale, _BUCKETS, edges)

    def _edges(self, learning: LearningTable, bins: int) -> np.ndarray:
        """Return the edges of bins: quantiles of rows sampled at equal distances from all training days."""
        numbers = [feature for feature in learning.features if feature.kind == "dense"]
        step = -(-learning.rows("train") // _EDGE_ROWS)
        sampled = [float_matrix(frame.gather_every(step), numbers) for frame in learning.frames("train")]
        return bin_edges(np.concatenate(sampled), bins)

    def _train_pass(
        self, solvers: tuple[Any, ...], encoded_rows: _EncodedRows, parts: tuple[Part, ...], title: str
    ) -> None:
        with progress(f"{self.name} {title}", total=encoded_rows.learning.rows(*parts)) as advance:
            for labels, vectors, weights in encoded_rows.iter_files(*parts):
                for solver in solvers:
                    solver.partial_fit(vectors, labels, sample_weight=weights)
                advance(len(labels), "")

    def _refit(self, solver: Any, encoded_rows: _EncodedRows, passes: int) -> None:
        for number in range(1, passes + 1):
            self._train_pass((solver,), encoded_rows, ("train", "validation"), f"refit {number}/{passes}")
        self.coefficients, self.intercept = self._weights(solver)

    def _weights(self, solver: Any) -> tuple[np.ndarray, np.ndarray]:
        return solver.coef_[0].astype(np.float32), solver.intercept_.astype(np.float32)

    def _set_unknown(self, learning: LearningTable) -> None:
        """Shrink the coefficients of unknown ids, missing numbers and empty lists towards the mean of the others.

        Coefficients of one column may all be shifted by what those of another make up for. An id without rows has
        none of this shift, and would move every score by it. So that the mean score stays, rows count by the slope of
        their score over the log-odds, halfway to that of the average row, which scores move to.
        """
        floats, coefficients = np.split(self.coefficients, [len(self.one_hot.mean)])
        buckets = self.one_hot.unknown_buckets()
        rows, sums, unknown = 0, np.zeros(buckets.size), np.zeros(buckets.size)
        for frame in learning.frames("train"):
            scores = self._predict(frame).astype(np.float64)
            slopes = scores * (1 - scores)
            slopes += slopes.mean()
            frame_sums, frame_unknown = self.one_hot.sum_terms(frame, coefficients, slopes / slopes.mean())
            rows, sums, unknown = rows + frame.height, sums + frame_sums, unknown + frame_unknown
        known = rows - unknown
        means = (sums - unknown * coefficients[buckets]) / np.maximum(known, 1)
        share = unknown / (unknown + _UNKNOWN_PRIOR_ROWS)
        shrunk = share * coefficients[buckets] + (1 - share) * means
        coefficients[buckets] = np.where(known > 0, shrunk, coefficients[buckets])
        self.coefficients = np.concatenate([floats, coefficients]).astype(np.float32)

    def _validate(self, solver: Any, encoded_rows: _EncodedRows) -> dict[str, float | None]:
        """Return the metrics of the validation days."""
        coefficients, intercept = self._weights(solver)
        labels, scores, weights = [], [], []
        for label, vectors, weight in encoded_rows.iter_files("validation"):
            labels.append(label)
            scores.append(probabilities(vectors @ coefficients + intercept))
            weights += [weight] if weight is not None else []
        all_weights = np.concatenate(weights) if weights else None
        return validation_metrics(np.concatenate(labels), np.concatenate(scores), all_weights)

    def _predict(self, frame: pl.DataFrame) -> np.ndarray:
        return probabilities(self.one_hot.encode(frame) @ self.coefficients + self.intercept)

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


def _make_solver(l2: float, seed: int, encoded_rows: _EncodedRows) -> Any:
    """Return a solver whose intercept is the log-odds of the training days' label rate.

    The coefficients of ids then only learn how their rows differ from the others, so that an id without rows, as of an
    unknown or missing value, scores like the average. Without it they learn the rate too: in scikit-learn 1.9 an
    averaging classifier begins every `partial_fit` with the intercept that it began the first with.
    """
    from sklearn.linear_model import SGDClassifier

    solver = SGDClassifier(
        loss="log_loss", alpha=l2, average=True, random_state=seed, learning_rate="invscaling", eta0=0.05, power_t=0.25,
        max_iter=1, tol=None,
    )  # fmt: skip
    rate = encoded_rows.label_rate()
    no_values = sparse.csr_matrix((2, encoded_rows.one_hot.width), dtype=np.float32)
    labels, weights = np.array([0, 1]), np.array([rate, 1 - rate]) * 1e-6
    return solver.fit(no_values, labels, intercept_init=np.log(rate / (1 - rate)), sample_weight=weights)


class _EncodedRows:
    """Rows of a table as labels and vectors, file by file; the first files are cached, up to a bound."""

    def __init__(self, learning: LearningTable, one_hot: OneHot) -> None:
        self.learning = learning
        self.one_hot = one_hot
        self._cached_files: dict[Path, tuple[np.ndarray, sparse.csr_matrix, np.ndarray | None]] = {}
        self._bytes = 0

    def label_rate(self) -> float:
        """Return the share of positives on the training days, by the rows' weights where they have some."""
        if not self.learning.is_weighted:
            return self.learning.base_rate
        labels_and_weights = [(labels, weights) for labels, _, weights in self.iter_files("train")]
        labels, weights = (np.concatenate(parts) for parts in zip(*labels_and_weights, strict=True))
        return float(np.average(labels, weights=weights))

    def iter_files(self, *parts: Part) -> Iterator[tuple[np.ndarray, sparse.csr_matrix, np.ndarray | None]]:
        """Yield labels, vectors of floats and buckets, and weights of the rows, for every file of some parts."""
        for path in self.learning.paths(*parts):
            if path in self._cached_files:
                yield self._cached_files[path]
                continue
            frame = self.learning.read(path)
            encoded = frame[Columns.LABEL].to_numpy(), self.one_hot.encode(frame), weights_of(frame)
            size = encoded[1].data.nbytes + encoded[1].indices.nbytes + encoded[1].indptr.nbytes
            if self._bytes + size <= _MAX_CACHED_BYTES:
                self._cached_files[path], self._bytes = encoded, self._bytes + size
            yield encoded
