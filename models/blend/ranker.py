"""A blend: the weighted sum of its members' log-odds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from models.blend.section import BlendModel
from shortlist.contracts import Columns, Files
from shortlist.evaluation.metrics.pointwise import UnmeasurableError
from shortlist.evaluation.metrics.scores import ScoredRows, check_same_rows, read_scores
from shortlist.ranking.inputs import LearningTable, features_of
from shortlist.ranking.ranker import DivergedError, FitOutcome, MemberFiles, OnEpoch, Ranker
from shortlist.ranking.saved_models import load_ranker
from shortlist.ranking.validation import probabilities, validation_metrics
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import read_json, write_json
from shortlist.storage.tables import DayTable

WEIGHTS: Final = "blend.json"
MEMBERS: Final = "members"
"""Subfolder of a blend's folder with the members' folders."""
LARGEST_LOG_ODDS: Final = np.float32(np.log((1 - 1e-7) / 1e-7))
"""Members' log-odds are clipped to this absolute value, as scores are clipped near 0 and 1."""
_FOLDS: Final = 5


class BlendRanker(Ranker[BlendModel]):
    """Logistic regression on the members' scores of the validation days (stacking; Wolpert, 1992).

    The members did not learn these days. The blend did, so its scores of these days, by which candidates are compared,
    come from cross-validation. A member that is refitted on these days afterwards has another bias than the one whose
    scores were read, so the intercept is then solved for once more, with the refitted members' scores of these days.
    """

    kind = "blend"
    section_type = BlendModel
    _rankers: dict[str, Ranker[Any]]
    _rows: dict[str, ScoredRows]
    _weights: np.ndarray
    _intercept: np.float32

    def _learning(self, table: DayTable) -> LearningTable:
        self._rows = _validation_rows(self.members)  # first: a member without scores has no weights either
        self._rankers = {name: load_ranker(files.model) for name, files in self.members.items()}
        member_features = {feature.name for ranker in self._rankers.values() for feature in ranker.record.features}
        return LearningTable(table, tuple(feature for feature in features_of(table) if feature.name in member_features))

    def _fit(self, learning: LearningTable, runtime: Runtime, on_epoch: OnEpoch, champion: Path | None) -> FitOutcome:
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold, cross_val_predict
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        labels = _check_labels(self._rows)
        log_odds = np.stack([_log_odds(rows.scores) for rows in self._rows.values()], axis=1)
        regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1_000))
        folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=runtime.seed)
        held_out = cross_val_predict(regression, log_odds, labels, cv=folds, method="predict_proba")[:, 1]
        regression.fit(log_odds, labels)
        scaler, fitted = regression[0], regression[1]
        weights = fitted.coef_[0] / scaler.scale_
        self._weights = weights.astype(np.float32)
        self._intercept = np.float32(fitted.intercept_[0] - scaler.mean_ @ weights)
        if any(ranker.record.params.get("refit") for ranker in self._rankers.values()):
            frames = map(self.with_served_values, learning.frames("validation"))
            refitted_log_odds = np.concatenate([self._log_odds(frame) for frame in frames])
            self._intercept += np.float32(shift_to_rate(refitted_log_odds, float(labels.mean())))
        epoch_metrics = {"epoch": 1, **validation_metrics(labels, held_out)}
        on_epoch(epoch_metrics)
        self._rows = {}
        return FitOutcome((epoch_metrics,), best=1, epochs=1, held_out=held_out[_impression_ranks(learning)])

    def _predict(self, frame: pl.DataFrame) -> np.ndarray:
        return probabilities(self._log_odds(frame))

    def _log_odds(self, frame: pl.DataFrame) -> np.ndarray:
        columns = [
            np.clip(ranker.log_odds(frame), -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS) for ranker in self._member_rankers()
        ]
        return np.asarray(np.stack(columns, axis=1, dtype=np.float32) @ self._weights + self._intercept)

    def _member_rankers(self) -> list[Ranker[Any]]:
        return [self._rankers[name] for name in self.section.members]

    def _write(self, folder: Path) -> None:
        for name, ranker in self._rankers.items():
            ranker.save(folder / MEMBERS / name)
        weights = dict(zip(self.section.members, self._weights.tolist(), strict=True))
        write_json(folder / WEIGHTS, {"weights": weights, "intercept": float(self._intercept)})

    def _read(self, folder: Path) -> None:
        self._rankers = {name: load_ranker(folder / MEMBERS / name) for name in self.section.members}
        self._weights, self._intercept = read_weights(folder, self.section.members)


def shift_to_rate(log_odds: np.ndarray, rate: float) -> float:
    """Return what is to be added to log-odds so that the mean of the probabilities is a rate.

    Args:
        log_odds: Finite numbers, shape (rows,).
        rate: Above 0 and below 1.
    """
    from scipy.optimize import brentq
    from scipy.special import expit

    reach = abs(float(np.log(rate / (1 - rate)))) + float(np.abs(log_odds).max())
    return float(brentq(lambda shift: expit(log_odds + shift).mean(dtype=np.float64) - rate, -reach, reach))


def read_weights(folder: Path, members: tuple[str, ...]) -> tuple[np.ndarray, np.float32]:
    """Return the weights of the members, float32, shape (members,), and the intercept."""
    saved = read_json(folder / WEIGHTS)
    return np.array([saved["weights"][name] for name in members], np.float32), np.float32(saved["intercept"])


def _validation_rows(members: Mapping[str, MemberFiles]) -> dict[str, ScoredRows]:
    """Return every member's rows of the validation days.

    Raises:
        DivergedError: A member has no scores, or learnt the validation days and kept no earlier scores.
    """
    rows_by_member: dict[str, ScoredRows] = {}
    for name, files in members.items():
        try:
            rows_by_member[name] = read_scores(files.scores / Files.SCORES, "validation")
            check_same_rows(rows_by_member[name], next(iter(rows_by_member.values())))
        except UnmeasurableError as problem:
            raise DivergedError(f"its member '{name}' cannot be read: {problem}") from None
        if rows_by_member[name].learnt:
            raise DivergedError(
                f"its member '{name}' has learnt the validation days and kept no scores from before; nothing is left"
                " to fit the blend on. Train that member without refit, or in one process"
            )
    return rows_by_member


def _check_labels(rows: Mapping[str, ScoredRows]) -> np.ndarray:
    labels: np.ndarray = next(iter(rows.values())).labels
    rarer = int(min(labels.sum(), len(labels) - labels.sum()))
    if rarer < _FOLDS:
        raise DivergedError(
            f"the {len(labels):,} rows of the validation days have {rarer} of the rarer label; a blend is fitted on"
            f" {_FOLDS} or more. Give more validation days"
        )
    return labels


def _impression_ranks(learning: LearningTable) -> np.ndarray:
    """Return the rank by impression id of each validation row of the table, from 0."""
    read = (pl.read_parquet(path, columns=[Columns.IMPRESSION], hive_partitioning=False)
            for path in learning.paths("validation"))  # fmt: skip
    return pl.concat(read)[Columns.IMPRESSION].rank("ordinal").to_numpy() - 1


def _log_odds(scores: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):  # a member that is certain has scores of 0 and 1
        return np.asarray(np.clip(np.log(scores / (1 - scores)), -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS))
