"""Gradient-boosted trees of CatBoost on the rows of a feature table, kept as arrays that are scored without it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from models.catboost.conversion import convert, leaf_weights
from models.catboost.lookup import float_features, id_features, ids_and_floats
from models.catboost.oblivious_trees import ObliviousTrees
from models.catboost.section import CatBoostModel
from models.objectives import ListNumbers, check_lists, read_sorted_by_list
from models.trees import gain_shares, labels_of, tree_learning_table
from models.unknown_values import find_rarely_unknown_features
from shortlist.contracts import ShortlistError
from shortlist.ranking.inputs import LearningTable, Part, weights_of
from shortlist.ranking.matrix import float_names
from shortlist.ranking.ranker import DivergedError, FitOutcome, OnEpoch, Ranker
from shortlist.ranking.validation import probabilities, validation_metrics
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.system.progress import progress

if TYPE_CHECKING:
    import catboost as cb

_SECTION_KEYS: Final = frozenset(
    ("kind", "role", "calibration", "labels", "weights", "objective", "features", "rounds", "early_stopping_rounds",
     "refit", "max_bin")
)  # fmt: skip
"""Keys of the section that this module handles; the others are parameters of CatBoost."""
_LOSSES: Final = {"pointwise": "Logloss", "pairwise": "PairLogit", "listwise": "QuerySoftMax"}
_ORDER_METRIC: Final = "NDCG:top=10;type=Base;hints=skip_train~false"
_METRICS: Final = {"Logloss": "log_loss", _ORDER_METRIC: "ndcg_at_10"}
_ROW_BYTES, _FLOAT_BYTES, _ID_BYTES = 250, 6, 60
"""Memory of a training per row, and per number and id of a row, as measured; statistics of pairs take it twice."""


class CatBoostRanker(Ranker[CatBoostModel]):
    """CatBoost (Prokhorenkova et al., 2018): null is missing, ids are categories, the unknown id 0 is one of them.

    With `refit` the trees also learn from the validation days, so their scores of these days are of training rows.
    """

    kind = "catboost"
    section_type = CatBoostModel
    _trees: ObliviousTrees

    def _learning(self, table: DayTable) -> LearningTable:
        return tree_learning_table(table, self.section, self.name)

    def _fit(self, learning: LearningTable, runtime: Runtime, on_epoch: OnEpoch, champion: Path | None) -> FitOutcome:
        if self.section.learns_order:
            check_lists(learning, self.section, self.name)
        _check_memory(learning, self.section, runtime, self.name)
        rarely_unknown = frozenset(feature.name for feature in find_rarely_unknown_features(learning))
        params = self._params(runtime)
        train, validation = _read_pool(learning, ("train",)), _read_pool(learning, ("validation",))
        history: list[dict[str, Any]] = []
        with _RoundRecorder(self.name, self.section.rounds, history, on_epoch) as recorder:
            stop = {"early_stopping_rounds": self.section.early_stopping_rounds, "use_best_model": True}
            model = _boost({**params, **stop, "iterations": self.section.rounds}, train, validation, recorder)
        del validation
        self._trees = _convert(model, train, learning, ("train",), rarely_unknown)
        trees = len(self._trees.depths)
        history[trees - 1] |= self._validate(learning)
        held_out = None
        if self.section.refit:
            held_out = self._score_held_out(learning)
            del train, model
            parts: tuple[Part, ...] = ("train", "validation")
            train = _read_pool(learning, parts)
            with _RoundRecorder(self.name, trees, [], lambda line: None) as recorder:
                model = _boost({**params, "iterations": trees}, train, None, recorder)
            self._trees = _convert(model, train, learning, parts, rarely_unknown)
        return FitOutcome(
            tuple(history), passes=len(history) + (trees if self.section.refit else 0), best=trees,
            rounds=len(self._trees.depths), held_out=held_out, importance=_importance(model, learning),
        )  # fmt: skip

    def _validate(self, learning: LearningTable) -> dict[str, float | None]:
        frames = list(learning.frames("validation"))
        weights = [file_weights for frame in frames if (file_weights := weights_of(frame)) is not None]
        return validation_metrics(
            np.concatenate([labels_of(frame) for frame in frames]),
            np.concatenate([self._predict(frame) for frame in frames]), np.concatenate(weights) if weights else None,
        )  # fmt: skip

    def _predict(self, frame: pl.DataFrame) -> np.ndarray:
        return probabilities(self._log_odds(frame))

    def _log_odds(self, frame: pl.DataFrame) -> np.ndarray:
        return self._trees.log_odds(frame, self.features)

    def _write(self, folder: Path) -> None:
        self._trees.write(folder)

    def _read(self, folder: Path) -> None:
        self._trees = ObliviousTrees.read(folder)

    def _params(self, runtime: Runtime) -> dict[str, Any]:
        """Return CatBoost's parameters, with which the same rows give the same trees for any number of threads."""
        params = self.section.model_dump(exclude=set(_SECTION_KEYS))
        fixed = {
            "bootstrap_type": "MVS", "boosting_type": "Plain", "allow_writing_files": False, "logging_level": "Silent",
            "thread_count": _count_threads(), "random_seed": runtime.seed, "border_count": self.section.max_bin,
        }  # fmt: skip
        loss = {"loss_function": _LOSSES[self.section.objective]}
        order = {"eval_metric": _ORDER_METRIC} if self.section.learns_order else {"boost_from_average": True}
        return {**{name: value for name, value in params.items() if value is not None}, **fixed, **loss, **order}


class _RoundRecorder:
    """Records the metrics of every tree and shows progress; a callback of CatBoost."""

    def __init__(self, name: str, total: int, history: list[dict[str, Any]], on_epoch: OnEpoch) -> None:
        self._history, self._on_epoch = history, on_epoch
        self._progress = progress(name, total=total, unit="trees")

    def __enter__(self) -> _RoundRecorder:
        self._advance = self._progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)

    def after_iteration(self, iteration: Any) -> bool:
        """Record one more tree; return that training goes on."""
        metrics = {
            f"{'train' if part == 'learn' else part}_{_METRICS[metric]}": float(values[-1])
            for part, values_by_metric in (iteration.metrics or {}).items()
            for metric, values in values_by_metric.items()
            if metric in _METRICS
        }
        self._history.append({"round": iteration.iteration, **metrics})
        self._on_epoch(self._history[-1])
        self._advance(1, ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
        return True


def _boost(params: dict[str, Any], train: cb.Pool, validation: cb.Pool | None, recorder: _RoundRecorder) -> cb.CatBoost:
    import catboost as cb

    try:
        return cb.CatBoost(params).fit(train, eval_set=validation, callbacks=[recorder])
    except cb.CatBoostError as error:  # such as: all features are constant
        raise DivergedError(f"CatBoost cannot learn from these rows: {str(error).rpartition(': ')[2]}") from None


def _read_pool(learning: LearningTable, parts: tuple[Part, ...]) -> cb.Pool:
    """Return the rows of some parts as CatBoost's training data: floats first, then categories."""
    import catboost as cb

    frames, labels, weights, lists = [], [], [], []
    list_numbers = ListNumbers(learning)
    for path in learning.paths(*parts):
        frame = read_sorted_by_list(learning, path)
        floats, ids = ids_and_floats(frame, learning.features)
        frames.append(pl.DataFrame({**floats, **ids}))
        labels.append(labels_of(frame))
        weights += [file_weights] if (file_weights := weights_of(frame)) is not None else []
        lists += [numbers] if (numbers := list_numbers.number_rows(frame)) is not None else []
    return cb.Pool(
        pl.concat(frames, rechunk=True), np.concatenate(labels),
        cat_features=[feature.name for feature in id_features(learning.features)],
        weight=np.concatenate(weights) if weights else None, group_id=np.concatenate(lists) if lists else None,
    )  # fmt: skip


def _convert(
    model: cb.CatBoost, pool: cb.Pool, learning: LearningTable, parts: tuple[Part, ...], rarely_unknown: frozenset[str]
) -> ObliviousTrees:
    """Return a model's trees, which send rows that lack what hardly any training row lacks where the mean stays."""
    with tempfile.TemporaryDirectory(prefix="shortlist-catboost-") as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json", pool=pool)  # only JSON says the statistics of ids
        content = json.loads(path.read_text())

    def read_rows() -> Iterable[pl.DataFrame]:
        return learning.frames(*parts)

    names = float_names(float_features(learning.features))
    rare = frozenset(number for number, name in enumerate(names) if name in rarely_unknown)
    trees = convert(content, learning.features, read_rows, rarely_unknown)
    return trees.with_missing_directions(rare, len(names), leaf_weights(content))


def _importance(model: cb.CatBoost, learning: LearningTable) -> dict[str, float]:
    names = model.feature_names_
    gains = model.get_feature_importance(type="PredictionValuesChange")
    return gain_shares(dict(zip(names, gains, strict=True)), learning.features)


def _check_memory(learning: LearningTable, section: CatBoostModel, runtime: Runtime, name: str) -> None:
    """Refuse rows that do not fit the memory budget: CatBoost learns from rows in memory."""
    rows = learning.rows("train", "validation")
    floats, ids = len(float_names(float_features(learning.features))), len(id_features(learning.features))
    id_bytes = _ID_BYTES * section.max_ctr_complexity
    size_mib = rows * (_ROW_BYTES + _FLOAT_BYTES * floats + id_bytes * ids) // 2**20
    if size_mib > runtime.memory_budget_mib:
        raise ShortlistError(
            f"models.{name}: {rows:,} rows of {floats} numbers and {ids} ids take about {size_mib:,} MiB, more than"
            f" runtime.memory_budget_mib ({runtime.memory_budget_mib}), and this kind learns from rows in memory. Raise"
            " the budget, name fewer features, or declare another kind of trees"
        )


def _count_threads() -> int:
    """Return the threads that this process may use; CatBoost does not read OpenMP's variable by itself."""
    declared = os.environ.get("OMP_NUM_THREADS", "")
    return int(declared) if declared.isdigit() and int(declared) else os.cpu_count() or 1
