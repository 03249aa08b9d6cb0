"""Gradient-boosted trees of LightGBM, which reads a feature table file by file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lightgbm as lgb
import numpy as np
import polars as pl
import pyarrow.parquet as pq

from models.lightgbm.export import WEIGHTS, leaf_values
from models.lightgbm.section import LightGBMModel
from models.missing_directions import TreeNodes, choose_directions, rarely_missing
from models.objectives import check_lists, list_column, list_lengths, read_sorted_by_list
from models.trees import gain_shares, labels_of, tree_learning_table
from shortlist.contracts import Columns
from shortlist.ranking.inputs import LearningTable, Part, weights_of
from shortlist.ranking.matrix import float_matrix, float_names
from shortlist.ranking.ranker import FitOutcome, IncompatibleModelError, OnEpoch, Ranker
from shortlist.ranking.record import TrainedModel, read_record
from shortlist.ranking.validation import probabilities, validation_metrics
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.system.progress import progress

_SECTION_KEYS: Final = frozenset(
    ("kind", "role", "calibration", "labels", "weights", "objective", "features", "rounds", "early_stopping_rounds",
     "refit", "retrain", "retrain_rounds", "retrain_days", "max_depth")
)  # fmt: skip
"""Keys of the section that this module handles; the others are parameters of LightGBM."""
_LOSSES: Final = {"pointwise": "binary", "pairwise": "lambdarank", "listwise": "rank_xendcg"}
_METRICS: Final = {"binary_logloss": "log_loss", "ndcg@10": "ndcg_at_10"}
_SCORED_ROWS: Final = 8_192
_GOES_LEFT: Final = 0b0010
_NAN_IS_MISSING: Final = 0b1000
"""Bits of `decision_type` in LightGBM's text: where a missing value goes, and that NaN is one."""


class LightGBMRanker(Ranker[LightGBMModel]):
    """LightGBM (Ke et al., 2017) on histograms; null is missing, ids are read as numbers.

    With `refit` the trees also learn from the validation days, so their scores of these days are of training rows.
    """

    kind = "lightgbm"
    section_type = LightGBMModel
    _booster: lgb.Booster
    _leaves: list[np.ndarray]

    @classmethod
    def check_previous_model(cls, previous_model: TrainedModel, section: LightGBMModel) -> None:
        """Refuse more trees than are declared, and an earlier model with another objective."""
        trees, new_trees = previous_model.rounds or 0, section.retrain_rounds or 0
        if trees + new_trees > section.rounds:
            raise IncompatibleModelError(
                f"the earlier model has {trees} trees; {new_trees} more are beyond models.{previous_model.name}.rounds"
                f" ({section.rounds})"
            )
        if previous_model.params.get("objective", "pointwise") != section.objective:
            raise IncompatibleModelError(
                f"models.{previous_model.name}.objective changed; the earlier trees learnt otherwise"
            )

    def _learning(self, table: DayTable) -> LearningTable:
        return tree_learning_table(table, self.section, self.name)

    def _fit(self, learning: LearningTable, runtime: Runtime, on_epoch: OnEpoch, champion: Path | None) -> FitOutcome:
        if self.section.learns_order:
            check_lists(learning, self.section, self.name)
        champion_booster = _load_champion(champion, learning) if champion else None
        dataset = _memory_datasets(learning, runtime) if champion_booster else _file_datasets(learning)
        params = self._params(runtime)
        rare = rarely_missing(learning)
        history = self._boost(params, dataset, champion_booster, on_epoch)
        self._set_booster(_with_missing_directions(self._booster, rare))
        trees = self._booster.num_trees()
        grown = trees - (champion_booster.num_trees() if champion_booster else 0)
        history[grown - 1] |= self._validate(learning)
        held_out = None
        if self.section.refit:
            held_out = self._score_held_out(learning)
            all_rows = dataset(("train", "validation"), params, None)
            grown_anew = lgb.train(params, all_rows, grown, init_model=champion_booster)
            self._set_booster(_with_missing_directions(grown_anew, rare))
        gains = self._booster.feature_importance("gain")
        return FitOutcome(
            tuple(history), passes=len(history) + (grown if self.section.refit else 0), best=trees, rounds=trees,
            held_out=held_out,
            importance=gain_shares(
                dict(zip(float_names(learning.features), gains.tolist(), strict=True)), learning.features
            ),
        )  # fmt: skip

    def _boost(
        self, params: dict[str, Any], dataset: _Dataset, champion_booster: lgb.Booster | None, on_epoch: OnEpoch
    ) -> list[dict[str, Any]]:
        """Grow trees on the training days with early stopping on the validation days; return the history."""
        train = dataset(("train",), params, None)
        validation = dataset(("validation",), params, train)
        max_trees = (self.section.retrain_rounds if champion_booster else None) or self.section.rounds
        champion_trees = champion_booster.num_trees() if champion_booster else 0
        history: list[dict[str, Any]] = []
        with progress(self.name, total=max_trees, unit="trees") as advance:

            def record(environment: Any) -> None:
                metrics = environment.evaluation_result_list
                round_metrics = {f"{metric[0]}_{_METRICS[metric[1]]}": float(metric[2]) for metric in metrics}
                history.append({"round": champion_trees + len(history) + 1, **round_metrics})
                on_epoch(history[-1])
                advance(1, ", ".join(f"{name} {value:.4f}" for name, value in round_metrics.items()))

            stop = lgb.early_stopping(self.section.early_stopping_rounds, first_metric_only=True, verbose=False)
            booster = lgb.train(
                params, train, max_trees, valid_sets=[train, validation], valid_names=["train", "validation"],
                init_model=champion_booster, callbacks=[record, stop],
            )  # fmt: skip
        # Re-read from text, which holds only the trees up to the best round.
        best = booster.best_iteration if booster.best_iteration > 0 else booster.num_trees()
        self._booster = lgb.Booster(model_str=booster.model_to_string(num_iteration=best))
        return history

    def _set_booster(self, booster: lgb.Booster) -> None:
        self._booster, self._leaves = booster, leaf_values(booster)

    def _validate(self, learning: LearningTable) -> dict[str, float | None]:
        labels, scores, weights = [], [], []
        for frame in learning.frames("validation"):
            labels.append(labels_of(frame))
            scores.append(self._predict(frame))
            weights += [file_weights] if (file_weights := weights_of(frame)) is not None else []
        all_weights = np.concatenate(weights) if weights else None
        return validation_metrics(np.concatenate(labels), np.concatenate(scores), all_weights)

    def _predict(self, frame: pl.DataFrame) -> np.ndarray:
        return probabilities(self._log_odds(frame))

    def _log_odds(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the log-odds, added tree by tree in float32 as in the exported graph."""
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
        self._set_booster(lgb.Booster(model_file=folder / WEIGHTS))

    def _params(self, runtime: Runtime) -> dict[str, Any]:
        """Return LightGBM's parameters, with which the same rows give the same trees for any number of threads."""
        booster_params = self.section.model_dump(exclude=set(_SECTION_KEYS))
        fixed = {"deterministic": True, "force_row_wise": True, "verbosity": -1, "feature_pre_filter": False}
        order = {"metric": "ndcg", "eval_at": [10]} if self.section.learns_order else {"metric": "binary_logloss"}
        return {
            **booster_params, **fixed, **order, "objective": _LOSSES[self.section.objective], "seed": runtime.seed,
            "bagging_freq": int(self.section.bagging_fraction < 1), "max_depth": self.section.max_depth or -1,
        }  # fmt: skip


def _with_missing_directions(booster: lgb.Booster, floats: frozenset[int]) -> lgb.Booster:
    """Return the booster with directions of its own for rows that miss some floats; see `choose_directions`.

    LightGBM has no function that sets them; in its text, `decision_type` of a node says by bits what is missing and
    where it goes. Where no training row had NaN, its nodes take NaN as 0.
    """
    text = booster.model_to_string()
    blocks = re.split(r"(?m)^(?=Tree=)", re.sub(r"(?m)^tree_sizes=.*\n", "", text))
    trees = [_tree_lines(block) for block in blocks[1:]]
    for number, (tree, goes_left) in enumerate(
        zip(trees, choose_directions(map(_tree_nodes, trees), floats), strict=True), 1
    ):
        kinds = tree.get("decision_type", "").split()
        for node, is_left in goes_left.items():
            kinds[node] = str(_NAN_IS_MISSING | (_GOES_LEFT if is_left else 0))
        blocks[number] = re.sub(r"(?m)^decision_type=.*$", f"decision_type={' '.join(kinds)}", blocks[number])
    return lgb.Booster(model_str="".join(blocks))


def _tree_lines(block: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in block.splitlines() if "=" in line)


def _tree_nodes(tree: dict[str, str]) -> TreeNodes:
    """Return a tree of LightGBM's text: its inner nodes, then its leaves, whose numbers there are below 0."""
    values = [float(value) for value in tree["leaf_value"].split()]
    inner = [int(number) for number in tree.get("split_feature", "").split()]
    left, right = (
        [child if child >= 0 else len(inner) + ~child for child in map(int, tree.get(side, "").split())]
        for side in ("left_child", "right_child")
    )
    leaves = [-1] * len(values)
    weights = [float(weight) for weight in tree.get("leaf_weight", "1").split()]
    return TreeNodes(
        [*left, *leaves], [*right, *leaves], [*inner, *leaves], [0.0] * len(inner) + values,
        [0.0] * len(inner) + weights,
    )  # fmt: skip


_Dataset = Callable[[tuple[Part, ...], dict[str, Any], lgb.Dataset | None], lgb.Dataset]
"""dataset(parts, params, like) -> the rows of some parts, binned as `like` is."""


class _Reader:
    """Reads the floats of files, and caches the last file."""

    def __init__(self, learning: LearningTable) -> None:
        self._learning = learning
        self._path: Path | None = None
        self._floats = np.empty((0, 0), np.float32)

    def floats(self, path: Path) -> np.ndarray:
        if path != self._path:
            self._path, self._floats = (
                path,
                float_matrix(read_sorted_by_list(self._learning, path), self._learning.features),
            )
        return self._floats


class _File(lgb.Sequence):  # type: ignore[misc] # untyped
    """The floats of a file, decoded when LightGBM reads them, so that a table is never in memory as a whole."""

    def __init__(self, reader: _Reader, path: Path) -> None:
        self._reader, self._path = reader, path
        self._rows: int = pq.read_metadata(path).num_rows
        self.batch_size = self._rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, rows: int | slice | list[int]) -> np.ndarray:
        floats = self._reader.floats(self._path)[rows]
        return floats if isinstance(rows, slice) else floats.astype(np.float64)  # LightGBM bins doubles


def _file_datasets(learning: LearningTable) -> _Dataset:
    def dataset(parts: tuple[Part, ...], params: dict[str, Any], like: lgb.Dataset | None) -> lgb.Dataset:
        reader = _Reader(learning)
        files = [_File(reader, path) for path in learning.paths(*parts)]
        return _make_dataset(learning, parts, files, params, like)

    return dataset


def _memory_datasets(learning: LearningTable, runtime: Runtime) -> _Dataset:
    """Return a function that loads parts of the table into memory, as continued training needs.

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
        frames = [read_sorted_by_list(learning, path) for path in learning.paths(*parts)]
        floats = np.concatenate([float_matrix(frame, learning.features) for frame in frames])
        return _make_dataset(learning, parts, floats, params, like)

    return dataset


def _make_dataset(
    learning: LearningTable, parts: tuple[Part, ...], floats: Any, params: dict[str, Any], like: lgb.Dataset | None
) -> lgb.Dataset:
    frames = [read_sorted_by_list(learning, path) for path in learning.paths(*parts)]
    lists = [list_lengths(frame) for frame in frames] if list_column(learning.columns) else []
    return lgb.Dataset(
        floats, np.concatenate([labels_of(frame) for frame in frames]), reference=like,
        weight=np.concatenate([frame[Columns.WEIGHT].to_numpy() for frame in frames]) if learning.is_weighted else None,
        group=np.concatenate(lists) if lists else None, feature_name=float_names(learning.features), params=params,
    )  # fmt: skip


def _load_champion(folder: Path, learning: LearningTable) -> lgb.Booster:
    names, declared_names = float_names(read_record(folder).features), float_names(learning.features)
    if names != declared_names:
        raise IncompatibleModelError(
            f"{folder}: the champion reads {', '.join(names)}; the spec now says {', '.join(declared_names)}."
            " Train without the champion, or declare its features."
        )
    return lgb.Booster(model_file=folder / WEIGHTS)
