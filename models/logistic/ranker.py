"""Logistic regression on hashed one-hot ids, standardised floats and their bins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from safetensors.numpy import load_file, save_file
from scipy import sparse

from models.logistic.averaged_sgd import AveragedSGD
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
_CHOICE_ROWS = 400_000
"""Rows, sampled at equal distances, by which the bins and the L2 penalty are chosen; they fit into the cache."""
_CHOICE_PASSES = 3
"""Passes over these rows."""
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
        one_hot, l2 = self._choose_setting(learning, runtime.seed)
        bins = 0 if one_hot.edges is None else one_hot.edges.shape[1] + 1
        encoded_rows = _EncodedRows(learning, one_hot)
        solver = encoded_rows.make_solver(l2, runtime.seed)
        history: list[dict[str, Any]] = []
        stopping = EarlyStopping(patience=1)
        for epoch in range(1, self.section.epochs + 1):
            self._train_pass((solver,), encoded_rows, ("train",), f"epoch {epoch}/{self.section.epochs}")
            history.append({"epoch": epoch, "bins": bins, "l2": l2, **self._validate(solver, encoded_rows)})
            on_epoch(history[-1])
            if stopping.improved(epoch, history[-1]["validation_log_loss"]):
                best = solver.mean_coefficients()
            if stopping.patience_ended:
                break
        self.one_hot, (self.coefficients, self.intercept) = one_hot, best
        self._set_unknown(learning)
        held_out = None
        if self.section.refit:
            held_out = self._score_held_out(learning)
            self._refit(encoded_rows.make_solver(l2, runtime.seed), encoded_rows, stopping.best_epoch)
            self._set_unknown(learning)
        passes = len(history) + (stopping.best_epoch if self.section.refit else 0)
        return FitOutcome(
            tuple(history), passes=passes, best=stopping.best_epoch, epochs=len(history),
            held_out=held_out,
        )  # fmt: skip

    def _choose_setting(self, learning: LearningTable, seed: int) -> tuple[OneHot, float]:
        """Return the encoding with the bins, and the L2 penalty, of the lowest validation log loss on sampled rows."""
        encodings = [self._encoding(learning, bins) for bins in dict.fromkeys(self.section.bins)]
        if len(encodings) == len(self.section.l2) == 1:
            return encodings[0], self.section.l2[0]
        step = -(-learning.rows("train", "validation") // _CHOICE_ROWS)
        losses: list[tuple[float, OneHot, float]] = []
        for one_hot in encodings:
            sampled_rows = _EncodedRows(learning, one_hot, step)
            solvers = {l2: sampled_rows.make_solver(l2, seed) for l2 in self.section.l2}
            for number in range(1, _CHOICE_PASSES + 1):
                title = f"choice of bins and penalty, pass {number}/{_CHOICE_PASSES}"
                self._train_pass(tuple(solvers.values()), sampled_rows, ("train",), title)
            for l2, solver in solvers.items():
                losses.append((self._validate(solver, sampled_rows)["validation_log_loss"] or 0.0, one_hot, l2))
        _, one_hot, l2 = min(losses, key=lambda loss: loss[0])
        return one_hot, l2

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
        self, solvers: tuple[AveragedSGD, ...], encoded_rows: _EncodedRows, parts: tuple[Part, ...], title: str
    ) -> None:
        rows = encoded_rows.learning.rows(*parts)
        with progress(f"{self.name} {title}", total=rows) as advance, ThreadPoolExecutor(os.cpu_count()) as threads:
            for labels, vectors, weights in encoded_rows.iter_files(*parts):
                steps = [threads.submit(solver.learn, labels, vectors, weights) for solver in solvers]
                for step in steps:
                    step.result()
                advance(len(labels) * encoded_rows.step, "")

    def _refit(self, solver: AveragedSGD, encoded_rows: _EncodedRows, passes: int) -> None:
        for number in range(1, passes + 1):
            self._train_pass((solver,), encoded_rows, ("train", "validation"), f"refit {number}/{passes}")
        self.coefficients, self.intercept = solver.mean_coefficients()

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

    def _validate(self, solver: AveragedSGD, encoded_rows: _EncodedRows) -> dict[str, float | None]:
        """Return the metrics of the validation days."""
        coefficients, intercept = solver.mean_coefficients()
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


class _EncodedRows:
    """Every `step`-th row of a table as label and vector, file by file; the first files are cached, up to a bound."""

    def __init__(self, learning: LearningTable, one_hot: OneHot, step: int = 1) -> None:
        self.learning = learning
        self.one_hot = one_hot
        self.step = step
        self._cached_files: dict[Path, tuple[np.ndarray, sparse.csr_matrix, np.ndarray | None]] = {}
        self._bytes = 0

    def make_solver(self, l2: float, seed: int) -> AveragedSGD:
        """Return a solver that begins with the label rate of the training days."""
        return AveragedSGD(self.one_hot.width, self.label_rate(), l2, seed)

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
            frame = self.learning.read(path).gather_every(self.step)
            encoded = frame[Columns.LABEL].to_numpy(), self.one_hot.encode(frame), weights_of(frame)
            size = encoded[1].data.nbytes + encoded[1].indices.nbytes + encoded[1].indptr.nbytes
            if self._bytes + size <= _MAX_CACHED_BYTES:
                self._cached_files[path], self._bytes = encoded, self._bytes + size
            yield encoded
