"""Gradient-boosted trees of LightGBM, which reads a feature table file by file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lightgbm as lgb
import numpy as np
import polars as pl
import pyarrow.parquet as pq

from models.inputs import LearningTable, Part, weights_of
from models.lightgbm.export import WEIGHTS, leaf_values
from models.lightgbm.section import LightGBMModel
from models.matrix import float_matrix, float_names
from models.objectives import check_lists, file_lists, list_column, list_lengths
from models.ranker import IncompatibleModelError, OnEpoch, Outcome, Ranker
from models.record import TrainedModel, read_record
from models.trees import gain_shares, labels_of, trees_learn_from
from models.validation import probabilities, quality
from shortlist.contracts import Columns
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.system.progress import progress

_OURS: Final = frozenset(
    ("kind", "role", "calibration", "labels", "objective", "features", "rounds", "early_stopping_rounds", "refit",
     "retrain", "retrain_rounds", "retrain_days", "max_depth")
)  # fmt: skip
"""Keys of the section that are ours to follow; the others are parameters of LightGBM."""
_LOSSES: Final = {"pointwise": "binary", "pairwise": "lambdarank", "listwise": "rank_xendcg"}
_METRICS: Final = {"binary_logloss": "log_loss", "ndcg@10": "ndcg_at_10"}
_SCORED_ROWS: Final = 8_192


class LightGBMRanker(Ranker[LightGBMModel]):
    """LightGBM (Ke et al., 2017) on histograms; null is missing, ids are read as numbers.

    With `refit` the trees also learn from the validation days, so scores of validation days are then of seen rows.
    """

    kind = "lightgbm"
    section_type = LightGBMModel
    _booster: lgb.Booster
    _leaves: list[np.ndarray]

    @classmethod
    def check_earlier(cls, earlier: TrainedModel, section: LightGBMModel) -> None:
        """Refuse more trees than are declared, and trees that learnt something else."""
        trees, more = earlier.rounds or 0, section.retrain_rounds or 0
        if trees + more > section.rounds:
            raise IncompatibleModelError(
                f"the earlier model has {trees} trees; {more} more are beyond models.{earlier.name}.rounds"
                f" ({section.rounds})"
            )
        if earlier.params.get("objective", "pointwise") != section.objective:
            raise IncompatibleModelError(f"models.{earlier.name}.objective changed; the earlier trees learnt otherwise")

    def _learning(self, table: DayTable) -> LearningTable:
        return trees_learn_from(table, self.section, self.name)

    def _fit(self, learning: LearningTable, runtime: Runtime, on_epoch: OnEpoch, champion: Path | None) -> Outcome:
        if self.section.learns_order:
            check_lists(learning, self.section, self.name)
        before = _champion(champion, learning) if champion else None
        dataset = _in_memory(learning, runtime) if before else _by_file(learning)
        params = self._params(runtime)
        history = self._boost(params, dataset, before, on_epoch)
        self._keep(self._booster)
        trees = self._booster.num_trees()
        grown = trees - (before.num_trees() if before else 0)
        history[grown - 1] |= self._validated(learning)
        held_out = None
        if self.section.refit:
            held_out = self._held_out(learning)
            everything = dataset(("train", "validation"), params, None)
            self._keep(lgb.train(params, everything, grown, init_model=before))
        gains = self._booster.feature_importance("gain")
        return Outcome(
            tuple(history), passes=len(history) + (grown if self.section.refit else 0), best=trees, rounds=trees,
            held_out=held_out,
            importance=gain_shares(
                dict(zip(float_names(learning.features), gains.tolist(), strict=True)), learning.features
            ),
        )  # fmt: skip

    def _boost(
        self, params: dict[str, Any], dataset: _Dataset, before: lgb.Booster | None, on_epoch: OnEpoch
    ) -> list[dict[str, Any]]:
        """Grow trees on the training days until the validation days stop it; return the history."""
        train = dataset(("train",), params, None)
        validation = dataset(("validation",), params, train)
        most = (self.section.retrain_rounds if before else None) or self.section.rounds
        there = before.num_trees() if before else 0
        history: list[dict[str, Any]] = []
        with progress(self.name, total=most, unit="trees") as advance:

            def record(environment: Any) -> None:
                measured = environment.evaluation_result_list
                line = {f"{entry[0]}_{_METRICS[entry[1]]}": float(entry[2]) for entry in measured}
                history.append({"round": there + len(history) + 1, **line})
                on_epoch(history[-1])
                advance(1, ", ".join(f"{name} {value:.4f}" for name, value in line.items()))

            stop = lgb.early_stopping(self.section.early_stopping_rounds, first_metric_only=True, verbose=False)
            booster = lgb.train(
                params, train, most, valid_sets=[train, validation], valid_names=["train", "validation"],
                init_model=before, callbacks=[record, stop],
            )  # fmt: skip
        # The text of a booster holds the trees up to the best round only; so does everything that is made of it.
        best = booster.best_iteration if booster.best_iteration > 0 else booster.num_trees()
        self._booster = lgb.Booster(model_str=booster.model_to_string(num_iteration=best))
        return history

    def _keep(self, booster: lgb.Booster) -> None:
        self._booster, self._leaves = booster, leaf_values(booster)

    def _validated(self, learning: LearningTable) -> dict[str, float | None]:
        labels, scores, weights = [], [], []
        for frame in learning.frames("validation"):
            labels.append(labels_of(frame))
            scores.append(self._predict(frame))
            weights += [own] if (own := weights_of(frame)) is not None else []
        every = np.concatenate(weights) if weights else None
        return quality(np.concatenate(labels), np.concatenate(scores), every)

    def _predict(self, frame: pl.DataFrame) -> np.ndarray:
        return probabilities(self._log_odds(frame))

    def _log_odds(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the leaves' log-odds, added tree by tree in float32 as the exported graph adds them."""
        matrix = float_matrix(frame, self.features)
        total = np.zeros(len(matrix), np.float32)
        for first in range(0, len(matrix), _SCORED_ROWS):
            rows = slice(first, first + _SCORED_ROWS)
            leaf_of = np.asarray(self._booster.predict(matrix[rows], pred_leaf=True), np.int64)
            for values, leaves in zip(self._leaves, leaf_of.reshape(len(matrix[rows]), -1).T, strict=True):
                total[rows] += values[leaves]
        return total

    def _write(self, folder: Path) -> None:
        self._booster.save_model(folder / WEIGHTS)

    def _read(self, folder: Path) -> None:
        self._keep(lgb.Booster(model_file=folder / WEIGHTS))

    def _params(self, runtime: Runtime) -> dict[str, Any]:
        """Return LightGBM's parameters; the same rows give the same trees, however many threads there are."""
        own = self.section.model_dump(exclude=set(_OURS))
        fixed = {"deterministic": True, "force_row_wise": True, "verbosity": -1, "feature_pre_filter": False}
        order = {"metric": "ndcg", "eval_at": [10]} if self.section.learns_order else {"metric": "binary_logloss"}
        return {
            **own, **fixed, **order, "objective": _LOSSES[self.section.objective], "seed": runtime.seed,
            "bagging_freq": int(self.section.bagging_fraction < 1), "max_depth": self.section.max_depth or -1,
        }  # fmt: skip


_Dataset = Callable[[tuple[Part, ...], dict[str, Any], lgb.Dataset | None], lgb.Dataset]
"""dataset(parts, params, like) -> the rows of some parts, binned as `like` is."""


class _Reader:
    """Gives the floats of files, of which it keeps the last one."""

    def __init__(self, learning: LearningTable) -> None:
        self._learning = learning
        self._path: Path | None = None
        self._floats = np.empty((0, 0), np.float32)

    def floats(self, path: Path) -> np.ndarray:
        if path != self._path:
            self._path, self._floats = path, float_matrix(file_lists(self._learning, path), self._learning.features)
        return self._floats


class _File(lgb.Sequence):  # type: ignore[misc] # untyped
    """The floats of a file, decoded when LightGBM asks for them: those of a table are never in memory all at once."""

    def __init__(self, reader: _Reader, path: Path) -> None:
        self._reader, self._path = reader, path
        self._rows: int = pq.read_metadata(path).num_rows
        self.batch_size = self._rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, asked: int | slice | list[int]) -> np.ndarray:
        floats = self._reader.floats(self._path)[asked]
        return floats if isinstance(asked, slice) else floats.astype(np.float64)  # bins are made of doubles


def _by_file(learning: LearningTable) -> _Dataset:
    def dataset(parts: tuple[Part, ...], params: dict[str, Any], like: lgb.Dataset | None) -> lgb.Dataset:
        reader = _Reader(learning)
        files = [_File(reader, path) for path in learning.paths(*parts)]
        return _made(learning, parts, files, params, like)

    return dataset


def _in_memory(learning: LearningTable, runtime: Runtime) -> _Dataset:
    """Return a function that holds parts of the table as they are, for trees that are there already to score.

    Raises:
        IncompatibleModelError: The rows do not fit the memory budget.
    """
    paths, width = learning.paths("train", "validation"), len(float_names(learning.features))
    rows = sum(pq.read_metadata(path).num_rows for path in paths)
    if 4 * width * rows > runtime.memory_budget_mib * 2**20:
        raise IncompatibleModelError(
            f"{rows:,} rows of {width} floats are more than runtime.memory_budget_mib ({runtime.memory_budget_mib})"
            " holds, and trees can only go on from rows in memory. Learn fewer days again, or raise the budget"
        )

    def dataset(parts: tuple[Part, ...], params: dict[str, Any], like: lgb.Dataset | None) -> lgb.Dataset:
        frames = [file_lists(learning, path) for path in learning.paths(*parts)]
        floats = np.concatenate([float_matrix(frame, learning.features) for frame in frames])
        return _made(learning, parts, floats, params, like)

    return dataset


def _made(
    learning: LearningTable, parts: tuple[Part, ...], data: Any, params: dict[str, Any], like: lgb.Dataset | None
) -> lgb.Dataset:
    frames = [file_lists(learning, path) for path in learning.paths(*parts)]
    lists = [list_lengths(frame) for frame in frames] if list_column(learning.columns) else []
    return lgb.Dataset(
        data, np.concatenate([labels_of(frame) for frame in frames]), reference=like,
        weight=np.concatenate([frame[Columns.WEIGHT].to_numpy() for frame in frames]) if learning.is_weighted else None,
        group=np.concatenate(lists) if lists else None, feature_name=float_names(learning.features), params=params,
    )  # fmt: skip


def _champion(folder: Path, learning: LearningTable) -> lgb.Booster:
    names, wanted = float_names(read_record(folder).features), float_names(learning.features)
    if names != wanted:
        raise IncompatibleModelError(
            f"{folder}: the champion reads {', '.join(names)}; the spec now says {', '.join(wanted)}."
            " Train without the champion, or declare its features."
        )
    return lgb.Booster(model_file=folder / WEIGHTS)
