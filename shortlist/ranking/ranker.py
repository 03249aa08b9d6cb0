"""The interface of every model: fit, predict, save, load."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np
import polars as pl

from shortlist.contracts import Columns, DataError, Files, ShortlistError, label_column
from shortlist.ranking.calibration import CalibrationMethod, fit_calibration
from shortlist.ranking.hash_collisions import HashCollisions
from shortlist.ranking.heads import HEADS
from shortlist.ranking.inputs import LearningTable, TableFeature
from shortlist.ranking.matrix import check_columns
from shortlist.ranking.process_group import current_group
from shortlist.ranking.record import TrainedModel, read_record
from shortlist.ranking.validation import probabilities
from shortlist.serving.export.calibration import Calibration
from shortlist.spec.models import ModelSection
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import IntegrityError, atomic_folder, write_json, write_manifest
from shortlist.storage.tables import DayTable

OnEpoch = Callable[[dict[str, Any]], None]
"""Called after every epoch (every tree of XGBoost) with its metrics."""

_MIN_SCORE = np.float32(1e-7)  # a sigmoid in float32 reaches 0 and 1; the log loss of such a score is infinite


class IncompatibleModelError(ShortlistError):
    """A training cannot continue an earlier model; it can start from scratch."""


class DivergedError(ShortlistError):
    """A trained model gives NaN or infinity. The candidate is held and the run continues."""


class MemberFiles(NamedTuple):
    """Output folders of a trained member of an ensemble."""

    model: Path
    """The model folder."""
    scores: Path
    """Folder with the scores of the validation and test rows."""


class FitOutcome(NamedTuple):
    """Metrics and statistics of a fit, besides the weights."""

    history: tuple[dict[str, float | int | None], ...] = ()
    passes: int = 1
    """How often every training row was visited."""
    best: int | None = None
    rounds: int | None = None
    epochs: int | None = None
    importance: dict[str, float] = {}  # noqa: RUF012 - a NamedTuple's default, never changed
    hashed: dict[str, HashCollisions] = {}  # noqa: RUF012 - as above
    cached_rows: int | None = None
    held_out: np.ndarray | None = None
    """Scores of the validation rows, in the table's order, by the model before it was refitted on them; None where it
    is not refitted, or where they were not kept."""
    held_out_further: Mapping[str, np.ndarray] = MappingProxyType({})
    """The same scores for the further labels, by name, where the labels share a network."""


SectionT = TypeVar("SectionT", bound=ModelSection)


class Ranker(ABC, Generic[SectionT]):
    """A model that predicts the probability of the label for rows of a feature table.

    Subclasses set `kind` and `section_type`, and implement how weights are fitted, applied, written and read.
    """

    kind: ClassVar[str]
    section_type: ClassVar[type[ModelSection]]
    shares_body: ClassVar[bool] = False
    """Whether one network learns all labels, see `_further_log_odds`; else each further label has a model of its own,
    of the same kind and section."""

    def __init__(self, section: SectionT, name: str = "") -> None:
        """Create a ranker that is not fitted.

        Args:
            section: The model's section of a spec.
            name: Key of the model in the spec; empty: its kind.
        """
        self.section = section
        self.name = name or self.kind
        self._record: TrainedModel | None = None
        self.held_out: np.ndarray | None = None
        """See `FitOutcome.held_out`; None for a model that was loaded."""
        self.held_out_further: Mapping[str, np.ndarray] = {}
        """See `FitOutcome.held_out_further`."""
        self.members: dict[str, MemberFiles] = {}
        """Files of the models in `ModelSection.members`, by name; empty before `fit`, and for a loaded model."""
        self._calibration: Calibration | None = None
        self.heads: dict[str, Ranker[Any]] = {}
        """Models of the further labels by name, where each has one of its own."""
        self._further_calibrations: dict[str, Calibration] = {}
        self._features: tuple[TableFeature, ...] = ()

    @property
    def record(self) -> TrainedModel:
        """The record of the training, the content of `model.json`.

        Raises:
            ShortlistError: The model is not fitted yet.
        """
        if self._record is None:
            raise ShortlistError(f"the {self.kind} ranker is not fitted; call fit or load first")
        return self._record

    @property
    def features(self) -> tuple[TableFeature, ...]:
        """The features that the model reads; known from the start of `fit` on."""
        return self._features if self._record is None else self._record.features

    @classmethod
    def check_previous_model(cls, previous_model: TrainedModel, section: SectionT) -> None:
        """Check that a training of this section can continue an earlier model.

        Args:
            previous_model: Record of the earlier model.
            section: The section declared now.

        Raises:
            IncompatibleModelError: The training cannot continue it; says why.
        """

    def fit(
        self, table: DayTable, runtime: Runtime, on_epoch: OnEpoch | None = None, champion: Path | None = None,
        members: Mapping[str, MemberFiles] = MappingProxyType({}), label: str = "",
    ) -> TrainedModel:  # fmt: skip
        """Fit on the training days; validation days only decide when to stop, test days are never read.

        Args:
            table: A feature table.
            runtime: Engine, memory budget and seed.
            on_epoch: Called after every epoch with its metrics.
            champion: Folder of a model of the same kind and features to start from.
            members: Files of the models in `ModelSection.members`, by name.
            label: A further label to learn in place of the label; empty: the label.

        Raises:
            DataError: A part has no rows, a label never varies, or no row says how it was shown, which weights need.
            DivergedError: The model gives NaN, or its scores cannot be calibrated.
            IncompatibleModelError: The training cannot continue the champion.
            ShortlistError: A feature is missing, or of a kind that the model cannot read.
        """
        start = time.perf_counter()
        assert set(members) == set(self.section.members)
        self.members = dict(members)
        learning = self._learning(table)
        learning = learning.weighted(self.section.weights) if self.section.weights is not None else learning
        learning = learning.for_label(label) if label else learning
        if (group := current_group()) is not None:
            learning = learning.for_worker(group.files)
        self._record, self._calibration, self._features = None, None, learning.features
        self.heads, self._further_calibrations = {}, {}
        learning.base_rates(self.section.labels)  # raises before minutes of training if one never varies
        outcome = self._fit(learning, runtime, on_epoch or (lambda epoch_metrics: None), champion)
        seconds = time.perf_counter() - start
        rows = learning.rows("train")
        self.held_out, self.held_out_further = outcome.held_out, outcome.held_out_further
        self._record = TrainedModel(
            kind=self.kind, name=self.name, features=learning.features, params=self.section.model_dump(mode="json"),
            compared_as_baseline=self.section.compared_as_baseline,
            rounds=outcome.rounds, epochs=outcome.epochs, best_epoch=outcome.best, history=outcome.history,
            importance=outcome.importance, hashed=outcome.hashed, cached_rows=outcome.cached_rows,
            weighting=learning.weighting, base_rate=learning.base_rate, train_rows=rows,
            validation_rows=learning.rows("validation"), train_days=tuple(map(str, learning.split.train)),
            validation_days=tuple(map(str, learning.split.validation)), train_seconds=round(seconds, 3),
            train_rows_per_s=round(rows * outcome.passes / seconds, 1), seed=runtime.seed,
            champion=champion.name if champion else None,
        )  # fmt: skip
        if group is None:  # a worker lacks the other workers' validation rows; see `calibrate`
            self._calibrate(learning)
        if not self.shares_body:
            self._fit_heads(table, runtime, champion)
        return self._record

    def _fit_heads(self, table: DayTable, runtime: Runtime, champion: Path | None) -> None:
        """Fit a model of the same section for each further label."""
        for label in self.section.labels:
            head = type(self)(self.section.model_copy(update={"labels": ()}), self.name)
            previous_head = None if champion is None else champion / HEADS / label
            head.fit(
                table,
                runtime,
                champion=previous_head if previous_head and previous_head.is_dir() else None,
                label=label,
            )
            self.heads[label] = head

    def calibrate(self, table: DayTable) -> None:
        """Fit the declared calibration of a model that several workers trained, on all validation rows.

        Raises:
            DivergedError: The calibration cannot be fitted.
        """
        self._calibrate(self._learning(table))

    def predict(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the probability of every row's label.

        Args:
            frame: Rows with the model's features, as a feature table holds them.

        Returns:
            Shape (rows,), float32, above 0 and below 1.

        Raises:
            DataError: A feature is missing, or the model cannot read a value.
            DivergedError: The model gives NaN.
        """
        check_columns(frame, self.record.features)
        return self._score(self.with_served_values(frame))

    def predict_with_logged_values(self, frame: pl.DataFrame, **overrides: float) -> np.ndarray:
        """Return probabilities with the logged values of features that serving fixes, or with overridden values.

        Args:
            frame: Rows with the model's features.
            overrides: Values by feature; other features keep the values of the rows.
        """
        override_columns = [pl.lit(value, pl.Float32).alias(name) for name, value in overrides.items()]
        return self._score(frame.with_columns(override_columns))

    def with_served_values(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return rows with the fixed values of serving in features that only training knows."""
        served_columns = [
            pl.lit(feature.served, pl.Float32).alias(feature.name)
            for feature in self.features
            if feature.served is not None
        ]
        return frame.with_columns(served_columns) if served_columns else frame

    def _score(self, frame: pl.DataFrame) -> np.ndarray:
        if not frame.height:
            return np.empty(0, np.float32)
        scores = self._calibrated_probabilities(frame)
        assert scores.shape == (frame.height,)
        if np.isnan(scores).any():
            raise DivergedError(
                f"the {self.kind} model gives NaN for {int(np.isnan(scores).sum())} of {frame.height} rows"
            )
        return np.asarray(np.clip(scores, _MIN_SCORE, 1 - _MIN_SCORE))

    def _calibrated_probabilities(self, frame: pl.DataFrame) -> np.ndarray:
        if self._calibration is None:
            return np.asarray(self._predict(frame), np.float32)
        return probabilities(self._calibration.apply(self._log_odds(frame)))

    def _score_held_out(self, learning: LearningTable) -> np.ndarray:
        """Calibrate and return the scores of the validation rows in the table's order, before a refit learns them."""
        self._calibrate(learning)
        frames = map(self.with_served_values, learning.frames("validation"))
        return np.concatenate([self._calibrated_probabilities(frame) for frame in frames])

    def _score_held_out_further(self, learning: LearningTable) -> dict[str, np.ndarray]:
        """Return the scores of the further labels by name; call `_score_held_out` first."""
        frames = map(self.with_served_values, learning.frames("validation"))
        parts = [self._further_probabilities(frame) for frame in frames]
        return {name: np.concatenate([part[name] for part in parts]) for name in self.section.labels}

    def predict_further(self, frame: pl.DataFrame) -> dict[str, np.ndarray]:
        """Return the probabilities of the further labels by name, as `predict` does for the label.

        Raises:
            DataError: A feature is missing, or the model cannot read a value.
            DivergedError: The model gives NaN for a further label.
        """
        if self.heads or not frame.height:
            return {name: self.heads[name].predict(frame) if frame.height else np.empty(0, np.float32)
                    for name in self.record.labels}  # fmt: skip
        return self._further_probabilities(self.with_served_values(frame))

    def _further_probabilities(self, frame: pl.DataFrame) -> dict[str, np.ndarray]:
        log_odds_by_label = self._further_log_odds(frame)
        for name, log_odds in log_odds_by_label.items():
            if np.isnan(log_odds).any():
                raise DivergedError(f"the {self.kind} model gives NaN for label '{name}'")
        calibrated_by_label = {
            name: self._further_calibrations[name].apply(raw) if name in self._further_calibrations else raw
            for name, raw in log_odds_by_label.items()
        }
        return {
            name: np.clip(probabilities(log_odds), _MIN_SCORE, 1 - _MIN_SCORE)
            for name, log_odds in calibrated_by_label.items()
        }

    def log_odds(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the log-odds, calibrated where that is declared, shape (rows,)."""
        raw = self._log_odds(self.with_served_values(frame))
        return raw if self._calibration is None else self._calibration.apply(raw)

    def save(self, folder: Path) -> None:
        """Write weights, `model.json` and a manifest of digests; the folder appears whole or not at all."""
        with atomic_folder(folder) as staging:
            self._write(staging)
            if self._calibration is not None:
                self._calibration.write(staging)
            for name, head in self.heads.items():
                head.save(staging / HEADS / name)
            for name, calibration in self._further_calibrations.items():
                (staging / HEADS / name).mkdir(parents=True)
                calibration.write(staging / HEADS / name)
            write_json(staging / Files.MODEL, self.record.model_dump(mode="json"))
            write_manifest(staging)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the model in a folder.

        Raises:
            IntegrityError: A file is missing or was changed after training, or holds another kind of model.
        """
        record = read_record(folder)
        if record.kind != cls.kind:
            raise IntegrityError(f"{folder}: holds a model of kind '{record.kind}'; wanted '{cls.kind}'")
        ranker = cls(cls.section_type.model_validate(record.params), record.name)  # type: ignore[arg-type] # its own section
        ranker._record = record
        ranker._calibration = Calibration.read(folder)
        ranker._read(folder)
        for name in record.labels:
            if not cls.shares_body:
                ranker.heads[name] = cls.load(folder / HEADS / name)
            elif (calibration := Calibration.read(folder / HEADS / name)) is not None:
                ranker._further_calibrations[name] = calibration
        return ranker

    def _calibrate(self, learning: LearningTable) -> None:
        """Fit the declared calibration on the validation days, once; a kind that refits calls it before the refit."""
        method = self.section.calibration
        if method == "none" or self._calibration is not None:
            return
        frames = [
            (frame[Columns.LABEL].to_numpy(), self._log_odds(frame))
            for frame in map(self.with_served_values, learning.frames("validation"))
        ]
        labels, log_odds = (np.concatenate(part) for part in zip(*frames, strict=True))
        self._calibration = self._fit_calibration(method, log_odds, labels, f"models.{self.name}")
        if self.shares_body:
            for name in self.section.labels:
                parts = [
                    (frame[label_column(name)].to_numpy(), self._further_log_odds(frame)[name])
                    for frame in map(self.with_served_values, learning.frames("validation"))
                ]
                labels, log_odds = (np.concatenate(part) for part in zip(*parts, strict=True))
                label_key = f"models.{self.name}: label '{name}'"
                self._further_calibrations[name] = self._fit_calibration(method, log_odds, labels, label_key)

    def _fit_calibration(
        self, method: CalibrationMethod, log_odds: np.ndarray, labels: np.ndarray, model_key: str
    ) -> Calibration:
        if not np.isfinite(log_odds).all():
            raise DivergedError(f"the {self.kind} model gives NaN on the validation days; it cannot be calibrated")
        try:
            return fit_calibration(method, log_odds, labels, model_key)
        except DataError as problem:  # the candidate is held, and the run goes on
            raise DivergedError(str(problem)) from None

    def _further_log_odds(self, frame: pl.DataFrame) -> dict[str, np.ndarray]:
        """Return the log-odds of the further labels by name, shape (rows,) each; for kinds with `shares_body`."""
        return {}

    def _log_odds(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the log-odds before calibration, shape (rows,), as the exported graph computes them.

        An exported kind overrides it where its probabilities are rounded: near 1, float32 keeps few digits.
        """
        scores = np.clip(self._predict(frame), _MIN_SCORE, 1 - _MIN_SCORE).astype(np.float64)
        return np.asarray(np.log(scores / (1 - scores)))

    @abstractmethod
    def _learning(self, table: DayTable) -> LearningTable:
        """Return the columns and days to learn from."""

    @abstractmethod
    def _fit(self, learning: LearningTable, runtime: Runtime, on_epoch: OnEpoch, champion: Path | None) -> FitOutcome:
        """Fit the weights."""

    @abstractmethod
    def _predict(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the probabilities, shape (rows,)."""

    @abstractmethod
    def _write(self, folder: Path) -> None:
        """Write the weights into a folder."""

    @abstractmethod
    def _read(self, folder: Path) -> None:
        """Read the weights from a verified folder; `record` is set already."""
