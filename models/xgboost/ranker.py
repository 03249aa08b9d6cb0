"""Gradient-boosted trees that read a feature table in pieces, in memory or out of core."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import xgboost as xgb

from models.inputs import FeatureColumn, LearningTable
from models.matrix import float_matrix, float_names
from models.objectives import check_lists
from models.process_group import current
from models.ranker import IncompatibleModelError, OnEpoch, Outcome, Ranker
from models.record import TrainedModel, read_record
from models.trees import gain_shares, trees_learn_from
from models.validation import probabilities, quality
from models.xgboost.collective import all_gather_rows, xgboost_collective
from models.xgboost.device import xgboost_device
from models.xgboost.matrices import Matrix, binned_matrices, exact_matrices
from models.xgboost.section import XGBoostModel
from shortlist.contracts import Columns
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.system.progress import progress

_WEIGHTS = "model.ubj"
_OURS = {
    "kind", "role", "calibration", "labels", "objective", "features", "rounds", "early_stopping_rounds", "refit",
    "bin_sample_rows", "retrain", "retrain_rounds", "retrain_days",
}  # fmt: skip
"""Keys of the section that are ours to follow; the others are parameters of XGBoost."""
_LOSSES = {"pointwise": "binary:logistic", "pairwise": "rank:pairwise", "listwise": "rank:ndcg"}
_NAMES = {"logloss": "log_loss", "ndcg@10": "ndcg_at_10"}
_MAY_CHANGE = {
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

    With `refit` the trees also learn from the validation days, so scores of validation days are then of seen rows.
    """

    kind = "xgboost"
    section_type = XGBoostModel
    _booster: xgb.Booster

    @classmethod
    def check_earlier(cls, earlier: TrainedModel, section: XGBoostModel) -> None:
        """Refuse the number of trees that were grown otherwise, and more trees than are declared."""
        if section.retrain == "refit":
            # The best number of trees is that of trees grown alike.
            now = section.model_dump(mode="json", exclude=_MAY_CHANGE)
            changed = [name for name, value in now.items() if earlier.params.get(name, value) != value]
            if changed:
                raise IncompatibleModelError(
                    f"models.{earlier.name}: {', '.join(changed)} changed, so the earlier number of trees says nothing"
                )
        else:
            if earlier.params.get("objective", "pointwise") != section.objective:
                raise IncompatibleModelError(
                    f"models.{earlier.name}.objective changed, so the earlier trees learnt something else"
                )
            trees, more = earlier.rounds or 0, section.retrain_rounds or 0
            if trees + more > section.rounds:
                raise IncompatibleModelError(
                    f"the earlier model has {trees} trees; {more} more are beyond models.{earlier.name}.rounds"
                    f" ({section.rounds})"
                )

    def _learning(self, table: DayTable) -> LearningTable:
        return trees_learn_from(table, self.section, self.name)

    def _fit(self, learning: LearningTable, runtime: Runtime, on_epoch: OnEpoch, champion: Path | None) -> Outcome:
        if self.section.learns_order:
            check_lists(learning, self.section, self.name)
        params = self._params(runtime)
        if champion is not None and self.section.retrain == "refit":
            return self._regrow(learning, params, runtime, champion)
        before = _champion(champion, learning.features) if champion else None
        matrices = exact_matrices(learning, runtime) if before else self._binned(learning, runtime)
        with xgboost_collective(), matrices as matrix:
            history = self._boost(params, matrix, before, on_epoch)
            held_out = None
            if self.section.refit:
                if current() is None:  # of several workers none has every validation row; they may not calibrate too
                    held_out = self._held_out(learning)
                self._boost_again(params, matrix, before, self._booster.num_boosted_rounds() - _trees(before))
        importance = gain_shares(self._booster.get_score(importance_type="total_gain"), learning.features)
        trees = self._booster.num_boosted_rounds()
        passes = len(history) + (trees - _trees(before) if self.section.refit else 0)
        return Outcome(
            tuple(history), passes=passes, best=trees, rounds=trees, importance=importance,
            held_out=held_out,
        )  # fmt: skip

    def _boost(
        self, params: dict[str, Any], matrix: Matrix, before: xgb.Booster | None, on_epoch: OnEpoch
    ) -> list[dict[str, Any]]:
        """Grow trees on the training days until the validation days stop it; return the history."""
        train = matrix(("train",), None)
        validation = matrix(("validation",), train)
        history: list[dict[str, Any]] = []
        most = self.section.retrain_rounds if before and self.section.retrain == "continue" else None
        most = most or self.section.rounds
        with _Rounds(most, history, on_epoch) as rounds:
            # A callback that stops training keeps those after it from being called: the recording one comes first.
            booster = xgb.train(
                params, train, most, evals=[(train, "train"), (validation, "validation")],
                callbacks=[rounds, self._early_stopping()], xgb_model=before, verbose_eval=False,
            )  # fmt: skip
        kept = booster.num_boosted_rounds() - _trees(before)
        scores = booster.predict(validation, output_margin=self.section.learns_order)
        scores = probabilities(scores) if self.section.learns_order else scores
        # With an order to learn, XGBoost has a weight per list; the quality is then that of rows that count alike.
        weights = validation.get_weight() if not self.section.learns_order else np.empty(0)
        history[kept - 1] |= quality(
            all_gather_rows(validation.get_label()), all_gather_rows(scores),
            all_gather_rows(weights) if len(weights) else None,
        )  # fmt: skip
        self._booster = _released(booster)
        return history

    def _regrow(self, learning: LearningTable, params: dict[str, Any], runtime: Runtime, champion: Path) -> Outcome:
        """Grow as many trees as the champion has, anew.

        The new trees see every validation row, so none is left to measure them on. The validation log loss in the
        history is the champion's: trees grown alike, on fewer days.
        """
        rounds = read_record(champion).rounds
        if not rounds:
            raise IncompatibleModelError(f"{champion}: the champion has no trees to count; train without it.")
        with xgboost_collective(), self._binned(learning, runtime) as matrix:
            history = _quality_before(champion, learning, rounds)
            self._boost_again(params, matrix, None, rounds)
        importance = gain_shares(self._booster.get_score(importance_type="total_gain"), learning.features)
        return Outcome(history, passes=rounds, best=rounds, rounds=rounds, importance=importance)

    def _boost_again(self, params: dict[str, Any], matrix: Matrix, before: xgb.Booster | None, rounds: int) -> None:
        """Grow so many trees on training and validation days."""
        with _Rounds(rounds, [], lambda line: None) as shown:
            everything = matrix(("train", "validation"), None)
            self._booster = _released(xgb.train(params, everything, rounds, callbacks=[shown], xgb_model=before))

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

    def _binned(self, learning: LearningTable, runtime: Runtime) -> AbstractContextManager[Matrix]:
        return binned_matrices(learning, runtime, self.section.max_bin, self.section.bin_sample_rows)

    def _params(self, runtime: Runtime) -> dict[str, Any]:
        own = self.section.model_dump(exclude=_OURS)
        device = xgboost_device(runtime.engine)
        fixed = {
            "objective": _LOSSES[self.section.objective], "tree_method": "hist", "eval_metric": self._metric,
        }  # fmt: skip
        return {**own, **fixed, "device": device, "seed": runtime.seed}

    def _early_stopping(self) -> xgb.callback.EarlyStopping:
        return xgb.callback.EarlyStopping(
            rounds=self.section.early_stopping_rounds, metric_name=self._metric, data_name="validation",
            save_best=True, maximize=self.section.learns_order,
        )  # fmt: skip

    @property
    def _metric(self) -> str:
        return "ndcg@10" if self.section.learns_order else "logloss"


class _Rounds(xgb.callback.TrainingCallback):  # type: ignore[misc] # untyped
    """Shows and records every tree."""

    def __init__(self, total: int, history: list[dict[str, Any]], on_epoch: OnEpoch) -> None:
        self._history = history
        self._on_epoch = on_epoch
        self._progress = progress("xgboost", total=total, unit="trees")
        super().__init__()

    def __enter__(self) -> _Rounds:
        self._advance = self._progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)

    def after_iteration(self, model: xgb.Booster, epoch: int, evals_log: dict[str, Any]) -> bool:
        losses = {
            f"{data}_{_NAMES[metric]}": float(values[-1])
            for data, log in evals_log.items() for metric, values in log.items()
        }  # fmt: skip
        if losses:
            self._history.append({"round": model.num_boosted_rounds(), **losses})
            self._on_epoch(self._history[-1])
        shown = ((name.replace("_log_loss", " loss").replace("_", " "), loss) for name, loss in losses.items())
        self._advance(1, ", ".join(f"{name} {loss:.4f}" for name, loss in shown))
        return False


def _released(booster: xgb.Booster) -> xgb.Booster:
    """Return a booster that has let go of the matrices it learnt from; it scores rows in host memory."""
    booster.set_param({"device": "cpu"})
    return booster.reset()


def _trees(booster: xgb.Booster | None) -> int:
    return booster.num_boosted_rounds() if booster else 0


def _quality_before(champion: Path, learning: LearningTable, rounds: int) -> tuple[dict[str, Any], ...]:
    """Return the champion's line on the validation days; nothing if it learnt one or reads other features."""
    record = read_record(champion)
    names = float_names(record.features)
    if record.validation_days[-1] >= str(learning.split.validation[0]) or names != float_names(learning.features):
        return ()
    booster, labels, scores = xgb.Booster(model_file=champion / _WEIGHTS), [], []
    for frame in learning.frames("validation"):
        labels.append(frame[Columns.LABEL].to_numpy())
        scores.append(booster.inplace_predict(float_matrix(frame, learning.features), validate_features=False))
    none = np.empty(0, np.float32)
    found = quality(all_gather_rows(np.concatenate([none, *labels])), all_gather_rows(np.concatenate([none, *scores])))
    return ({"round": rounds, **found},)


def _champion(folder: Path, features: tuple[FeatureColumn, ...]) -> xgb.Booster:
    names = float_names(read_record(folder).features)
    if names != float_names(features):
        raise IncompatibleModelError(
            f"{folder}: the champion reads {', '.join(names)}; the spec now says {', '.join(float_names(features))}."
            " Train without the champion, or declare its features."
        )
    return xgb.Booster(model_file=folder / _WEIGHTS)
