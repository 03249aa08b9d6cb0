"""Gradient-boosted trees (XGBoost) that read a feature table file by file, in memory or out of core."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import xgboost as xgb

from models.missing_directions import TreeNodes, choose_directions, rarely_missing
from models.objectives import check_lists
from models.trees import gain_shares, tree_learning_table
from models.xgboost.collective import all_gather_rows, xgboost_collective
from models.xgboost.device import xgboost_device
from models.xgboost.matrices import Matrix, binned_matrices, exact_matrices
from models.xgboost.section import XGBoostModel
from shortlist.contracts import Columns
from shortlist.ranking.inputs import LearningTable, TableFeature
from shortlist.ranking.matrix import float_matrix, float_names
from shortlist.ranking.process_group import current_group
from shortlist.ranking.ranker import FitOutcome, IncompatibleModelError, OnEpoch, Ranker
from shortlist.ranking.record import TrainedModel, read_record
from shortlist.ranking.validation import probabilities, validation_metrics
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.system.progress import progress

_WEIGHTS = "model.ubj"
_SECTION_KEYS = {
    "kind", "role", "calibration", "labels", "weights", "objective", "features", "rounds", "early_stopping_rounds",
    "refit", "bin_sample_rows", "retrain", "retrain_rounds", "retrain_days",
}  # fmt: skip
"""Keys of the section that this module handles; the others are parameters of XGBoost."""
_LOSSES = {"pointwise": "binary:logistic", "pairwise": "rank:pairwise", "listwise": "rank:ndcg"}
_METRIC_NAMES = {"logloss": "log_loss", "ndcg@10": "ndcg_at_10"}
_IGNORED_KEYS = {
    "role",
    "calibration",
    "labels",
    "rounds",
    "early_stopping_rounds",
    "retrain",
    "retrain_rounds",
    "retrain_days",
}
"""Keys that do not change how a tree is grown."""


class XGBoostRanker(Ranker[XGBoostModel]):
    """XGBoost (Chen and Guestrin, 2016) on histograms; null is missing, ids are read as numbers.

    With `refit` the trees also learn from the validation days, so their scores of these days are of training rows.
    """

    kind = "xgboost"
    section_type = XGBoostModel
    _booster: xgb.Booster

    @classmethod
    def check_previous_model(cls, previous_model: TrainedModel, section: XGBoostModel) -> None:
        """Refuse a number of trees from other settings, more trees than are declared, and another objective."""
        if section.retrain == "refit":
            # The best number of trees holds only for the same settings.
            declared = section.model_dump(mode="json", exclude=_IGNORED_KEYS)
            changed = [name for name, value in declared.items() if previous_model.params.get(name, value) != value]
            if changed:
                raise IncompatibleModelError(
                    f"models.{previous_model.name}: {', '.join(changed)} changed, so the earlier number of trees says"
                    " nothing"
                )
        else:
            if previous_model.params.get("objective", "pointwise") != section.objective:
                raise IncompatibleModelError(
                    f"models.{previous_model.name}.objective changed, so the earlier trees learnt something else"
                )
            trees, new_trees = previous_model.rounds or 0, section.retrain_rounds or 0
            if trees + new_trees > section.rounds:
                raise IncompatibleModelError(
                    f"the earlier model has {trees} trees; {new_trees} more are beyond"
                    f" models.{previous_model.name}.rounds ({section.rounds})"
                )

    def _learning(self, table: DayTable) -> LearningTable:
        return tree_learning_table(table, self.section, self.name)

    def _fit(self, learning: LearningTable, runtime: Runtime, on_epoch: OnEpoch, champion: Path | None) -> FitOutcome:
        if self.section.learns_order:
            check_lists(learning, self.section, self.name)
        params = self._params(runtime)
        if champion is not None and self.section.retrain == "refit":
            return self._regrow(learning, params, runtime, champion)
        champion_booster = _load_champion(champion, learning.features) if champion else None
        matrices = exact_matrices(learning, runtime) if champion_booster else self._binned_matrices(learning, runtime)
        rare = rarely_missing(learning)
        with xgboost_collective(), matrices as matrix:
            history = self._boost(params, matrix, champion_booster, on_epoch)
            self._booster = _with_missing_directions(self._booster, rare)
            held_out = None
            if self.section.refit:
                if (
                    current_group() is None
                ):  # a worker lacks the other workers' validation rows; calibration is then refused
                    held_out = self._score_held_out(learning)
                self._train_final(
                    params,
                    matrix,
                    champion_booster,
                    self._booster.num_boosted_rounds() - _count_trees(champion_booster),
                )
                self._booster = _with_missing_directions(self._booster, rare)
        importance = gain_shares(self._booster.get_score(importance_type="total_gain"), learning.features)
        trees = self._booster.num_boosted_rounds()
        passes = len(history) + (trees - _count_trees(champion_booster) if self.section.refit else 0)
        return FitOutcome(
            tuple(history), passes=passes, best=trees, rounds=trees, importance=importance,
            held_out=held_out,
        )  # fmt: skip

    def _boost(
        self, params: dict[str, Any], matrix: Matrix, champion_booster: xgb.Booster | None, on_epoch: OnEpoch
    ) -> list[dict[str, Any]]:
        """Grow trees on the training days with early stopping on the validation days; return the history."""
        train = matrix(("train",), None)
        validation = matrix(("validation",), train)
        history: list[dict[str, Any]] = []
        max_trees = self.section.retrain_rounds if champion_booster and self.section.retrain == "continue" else None
        max_trees = max_trees or self.section.rounds
        with _RoundRecorder(max_trees, history, on_epoch) as rounds:
            # The recording callback comes first: a callback that stops training prevents later ones.
            booster = xgb.train(
                params, train, max_trees, evals=[(train, "train"), (validation, "validation")],
                callbacks=[rounds, self._early_stopping()], xgb_model=champion_booster, verbose_eval=False,
            )  # fmt: skip
        new_trees = booster.num_boosted_rounds() - _count_trees(champion_booster)
        scores = booster.predict(validation, output_margin=self.section.learns_order)
        scores = probabilities(scores) if self.section.learns_order else scores
        # Where order is learnt, XGBoost has a weight per list; the metrics are then unweighted.
        weights = validation.get_weight() if not self.section.learns_order else np.empty(0)
        history[new_trees - 1] |= validation_metrics(
            all_gather_rows(validation.get_label()), all_gather_rows(scores),
            all_gather_rows(weights) if len(weights) else None,
        )  # fmt: skip
        self._booster = _release_matrices(booster)
        return history

    def _regrow(self, learning: LearningTable, params: dict[str, Any], runtime: Runtime, champion: Path) -> FitOutcome:
        """Grow as many new trees as the champion has.

        The new trees learn the validation rows, so they cannot be validated. The validation metrics in the history are
        the champion's, with the same settings on fewer days.
        """
        rounds = read_record(champion).rounds
        if not rounds:
            raise IncompatibleModelError(f"{champion}: the champion has no trees to count; train without it.")
        with xgboost_collective(), self._binned_matrices(learning, runtime) as matrix:
            history = _champion_metrics(champion, learning, rounds)
            self._train_final(params, matrix, None, rounds)
            self._booster = _with_missing_directions(self._booster, rarely_missing(learning))
        importance = gain_shares(self._booster.get_score(importance_type="total_gain"), learning.features)
        return FitOutcome(history, passes=rounds, best=rounds, rounds=rounds, importance=importance)

    def _train_final(
        self, params: dict[str, Any], matrix: Matrix, champion_booster: xgb.Booster | None, rounds: int
    ) -> None:
        """Grow a number of trees on training and validation days."""
        with _RoundRecorder(rounds, [], lambda line: None) as progress_callback:
            all_rows = matrix(("train", "validation"), None)
            self._booster = _release_matrices(
                xgb.train(params, all_rows, rounds, callbacks=[progress_callback], xgb_model=champion_booster)
            )

    def _predict(self, frame: pl.DataFrame) -> np.ndarray:
        if self.section.learns_order:
            return probabilities(self._log_odds(frame))
        matrix = float_matrix(frame, self.features)
        return np.asarray(self._booster.inplace_predict(matrix, validate_features=False))

    def _log_odds(self, frame: pl.DataFrame) -> np.ndarray:
        matrix = float_matrix(frame, self.features)
        return np.asarray(self._booster.inplace_predict(matrix, predict_type="margin", validate_features=False))

    def _write(self, folder: Path) -> None:
        self._booster.save_model(folder / _WEIGHTS)

    def _read(self, folder: Path) -> None:
        self._booster = xgb.Booster(model_file=folder / _WEIGHTS)

    def _binned_matrices(self, learning: LearningTable, runtime: Runtime) -> AbstractContextManager[Matrix]:
        return binned_matrices(learning, runtime, self.section.max_bin, self.section.bin_sample_rows)

    def _params(self, runtime: Runtime) -> dict[str, Any]:
        booster_params = self.section.model_dump(exclude=_SECTION_KEYS)
        device = xgboost_device(runtime.engine)
        fixed = {
            "objective": _LOSSES[self.section.objective], "tree_method": "hist", "eval_metric": self._metric,
        }  # fmt: skip
        return {**booster_params, **fixed, "device": device, "seed": runtime.seed}

    def _early_stopping(self) -> xgb.callback.EarlyStopping:
        return xgb.callback.EarlyStopping(
            rounds=self.section.early_stopping_rounds, metric_name=self._metric, data_name="validation",
            save_best=True, maximize=self.section.learns_order,
        )  # fmt: skip

    @property
    def _metric(self) -> str:
        return "ndcg@10" if self.section.learns_order else "logloss"


class _RoundRecorder(xgb.callback.TrainingCallback):  # type: ignore[misc] # untyped
    """Records the metrics of every tree and shows progress."""

    def __init__(self, total: int, history: list[dict[str, Any]], on_epoch: OnEpoch) -> None:
        self._history = history
        self._on_epoch = on_epoch
        self._progress = progress("xgboost", total=total, unit="trees")
        super().__init__()

    def __enter__(self) -> _RoundRecorder:
        self._advance = self._progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)

    def after_iteration(self, model: xgb.Booster, epoch: int, evals_log: dict[str, Any]) -> bool:
        losses = {
            f"{part}_{_METRIC_NAMES[metric]}": float(values[-1])
            for part, log in evals_log.items() for metric, values in log.items()
        }  # fmt: skip
        if losses:
            self._history.append({"round": model.num_boosted_rounds(), **losses})
            self._on_epoch(self._history[-1])
        short_losses = ((name.replace("_log_loss", " loss").replace("_", " "), loss) for name, loss in losses.items())
        self._advance(1, ", ".join(f"{name} {loss:.4f}" for name, loss in short_losses))
        return False


def _release_matrices(booster: xgb.Booster) -> xgb.Booster:
    """Return the booster without its training matrices; it scores rows in host memory."""
    booster.set_param({"device": "cpu"})
    return booster.reset()


def _with_missing_directions(booster: xgb.Booster, floats: frozenset[int]) -> xgb.Booster:
    """Return the booster with directions of its own for rows that miss some floats; see `choose_directions`."""
    model = json.loads(booster.save_raw("json"))
    trees = model["learner"]["gradient_booster"]["model"]["trees"]
    nodes = (
        TreeNodes(tree["left_children"], tree["right_children"], tree["split_indices"], tree["split_conditions"],
                  tree["sum_hessian"])
        for tree in trees
    )  # fmt: skip
    for tree, goes_left in zip(trees, choose_directions(nodes, floats), strict=True):
        for node, is_left in goes_left.items():
            tree["default_left"][node] = int(is_left)
    return xgb.Booster(model_file=bytearray(json.dumps(model).encode()))


def _count_trees(booster: xgb.Booster | None) -> int:
    return booster.num_boosted_rounds() if booster else 0


def _champion_metrics(champion: Path, learning: LearningTable, rounds: int) -> tuple[dict[str, Any], ...]:
    """Return the champion's metrics on the validation days; empty if it learnt one or reads other features."""
    record = read_record(champion)
    names = float_names(record.features)
    if record.validation_days[-1] >= str(learning.split.validation[0]) or names != float_names(learning.features):
        return ()
    booster, labels, scores = xgb.Booster(model_file=champion / _WEIGHTS), [], []
    for frame in learning.frames("validation"):
        labels.append(frame[Columns.LABEL].to_numpy())
        scores.append(booster.inplace_predict(float_matrix(frame, learning.features), validate_features=False))
    none = np.empty(0, np.float32)
    metrics = validation_metrics(
        all_gather_rows(np.concatenate([none, *labels])), all_gather_rows(np.concatenate([none, *scores]))
    )
    return ({"round": rounds, **metrics},)


def _load_champion(folder: Path, features: tuple[TableFeature, ...]) -> xgb.Booster:
    names = float_names(read_record(folder).features)
    if names != float_names(features):
        raise IncompatibleModelError(
            f"{folder}: the champion reads {', '.join(names)}; the spec now says {', '.join(float_names(features))}."
            " Train without the champion, or declare its features."
        )
    return xgb.Booster(model_file=folder / _WEIGHTS)
