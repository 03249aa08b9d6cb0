"""The interface that every model keeps: fit, predict, save, load."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np
import polars as pl

from models.calibration import How, fit_calibration
from models.hash_collisions import HashCollisions
from models.heads import HEADS
from models.inputs import FeatureColumn, LearningTable
from models.matrix import check_columns
from models.process_group import current
from models.record import TrainedModel, read_record
from models.validation import probabilities
from shortlist.contracts import Columns, DataError, Files, ShortlistError, label_column
from shortlist.serving.export.calibration import Calibration
from shortlist.spec.models import ModelSection
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import IntegrityError, atomic_folder, write_json, write_manifest
from shortlist.storage.tables import DayTable

OnEpoch = Callable[[dict[str, Any]], None]
"""Called after every epoch (every tree of XGBoost) with its line of the history."""

_SMALLEST = np.float32(1e-7)  # a sigmoid in float32 reaches 0 and 1; the log loss of such a score is infinite


class IncompatibleModelError(ShortlistError):
    """An earlier model that a training cannot start from; from scratch it can."""


class DivergedError(ShortlistError):
    """A training left a model without usable scores: NaN or infinity. The candidate is held and the run goes on."""


class MemberFiles(NamedTuple):
    """What a training left of a model that another one is made of."""

    model: Path
    """Its folder."""
    scores: Path
    """Folder of the scores of the validation and test rows."""


class Outcome(NamedTuple):
    """What fitting leaves besides the weights."""

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
    """Scores of the validation rows, in the table's order, by the model that had not learnt them; None where the final
    one has not either, or where they were not kept."""
    held_out_further: Mapping[str, np.ndarray] = MappingProxyType({})
    """Likewise of the further labels, by name, where they share a body."""


SectionT = TypeVar("SectionT", bound=ModelSection)


class Ranker(ABC, Generic[SectionT]):
    """A model that gives every row of a feature table the probability of its label.

    Subclasses name their `kind` and section, and fill in how weights are fitted, applied, written and read.
    """

    kind: ClassVar[str]
    section_type: ClassVar[type[ModelSection]]
    shares_body: ClassVar[bool] = False
    """Whether one training learns the further labels too, by heads over what all share; see `_further_log_odds`.
    Otherwise each has a model of its own, of the same kind and section."""

    def __init__(self, section: SectionT, name: str = "") -> None:
        """Take what is declared; nothing is learnt yet.

        Args:
            section: The model's section of a spec.
            name: What the user calls it; empty: as its kind.
        """
        self.section = section
        self.name = name or self.kind
        self._record: TrainedModel | None = None
        self.held_out: np.ndarray | None = None
        """See `Outcome.held_out`; None for a model that was loaded."""
        self.held_out_further: Mapping[str, np.ndarray] = {}
        """See `Outcome.held_out_further`."""
        self.members: dict[str, MemberFiles] = {}
        """What `ModelSection.members` names, by name; empty before `fit`, and for a model that was loaded."""
        self._calibration: Calibration | None = None
        self.heads: dict[str, Ranker[Any]] = {}
        """The models of the further labels by name, where they have models of their own."""
        self._further_calibrations: dict[str, Calibration] = {}
        self._features: tuple[FeatureColumn, ...] = ()

    @property
    def record(self) -> TrainedModel:
        """What `model.json` says.

        Raises:
            ShortlistError: The model is not fitted yet.
        """
        if self._record is None:
            raise ShortlistError(f"the {self.kind} ranker is not fitted; call fit or load first")
        return self._record

    @property
    def features(self) -> tuple[FeatureColumn, ...]:
        """What it reads, as soon as it has begun to learn."""
        return self._features if self._record is None else self._record.features

    @classmethod
    def check_earlier(cls, earlier: TrainedModel, section: SectionT) -> None:
        """Check that a training of this section can go on from an earlier model.

        Args:
            earlier: Its record.
            section: What is declared now.

        Raises:
            MisfitError: It cannot; says why.
        """

    def fit(
        self, table: DayTable, runtime: Runtime, on_epoch: OnEpoch | None = None, champion: Path | None = None,
        members: Mapping[str, MemberFiles] = MappingProxyType({}), label: str = "",
    ) -> TrainedModel:  # fmt: skip
        """Learn from the training days; validation days only tell when to stop, test days are never opened.

        Args:
            table: A feature table.
            runtime: Engine, memory budget and seed.
            on_epoch: Called after every epoch with its line of the history.
            champion: Folder of a model of the same kind and features to start from.
            members: The models that it is made of, by name: those of `ModelSection.members`.
            label: A further label to learn in the place of the label; empty: the label.

        Raises:
            DataError: There is nothing to learn from.
            DivergedError: It gives NaN, or its scores cannot be calibrated.
            MisfitError: The champion does not fit.
            ShortlistError: A feature is not there or not of a kind the model reads.
        """
        start = time.perf_counter()
        assert set(members) == set(self.section.members)
        self.members = dict(members)
        learning = self._learning(table)
        learning = learning.for_label(label) if label else learning
        if (group := current()) is not None:
            learning = learning.only(group.files)
        self._record, self._calibration, self._features = None, None, learning.features
        self.heads, self._further_calibrations = {}, {}
        learning.base_rates(self.section.labels)  # before minutes of training: none of them may never vary
        outcome = self._fit(learning, runtime, on_epoch or (lambda line: None), champion)
        seconds = time.perf_counter() - start
        rows = learning.rows("train")
        self.held_out, self.held_out_further = outcome.held_out, outcome.held_out_further
        self._record = TrainedModel(
            kind=self.kind, name=self.name, features=learning.features, params=self.section.model_dump(mode="json"),
            compared_as_baseline=self.section.compared_as_baseline,
            rounds=outcome.rounds, epochs=outcome.epochs, best_epoch=outcome.best, history=outcome.history,
            importance=outcome.importance, hashed=outcome.hashed, cached_rows=outcome.cached_rows,
            base_rate=learning.base_rate, train_rows=rows,
            validation_rows=learning.rows("validation"), train_days=tuple(map(str, learning.split.train)),
            validation_days=tuple(map(str, learning.split.validation)), train_seconds=round(seconds, 3),
            train_rows_per_s=round(rows * outcome.passes / seconds, 1), seed=runtime.seed,
            champion=champion.name if champion else None,
        )  # fmt: skip
        if group is None:  # of several workers none has seen every validation row; see `calibrate`
            self._calibrate(learning)
        if not self.shares_body:
            self._fit_heads(table, runtime, champion)
        return self._record

    def _fit_heads(self, table: DayTable, runtime: Runtime, champion: Path | None) -> None:
        """Fit a model of the same section for each further label."""
        for label in self.section.labels:
            head = type(self)(self.section.model_copy(update={"labels": ()}), self.name)
            earlier = None if champion is None else champion / HEADS / label
            head.fit(table, runtime, champion=earlier if earlier and earlier.is_dir() else None, label=label)
            self.heads[label] = head

    def calibrate(self, table: DayTable) -> None:
        """Fit the declared calibration of a model that several workers trained, on all validation rows.

        Raises:
            DataError: They do not tell.
        """
        self._calibrate(self._learning(table))

    def predict(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the probability of every row's label.

        Args:
            frame: Rows with the model's features, as a feature table holds them.

        Returns:
            Shape (rows,), float32, above 0 and below 1.

        Raises:
            DataError: A feature is missing, or a value is none the model can read.
            DivergedError: The model gives NaN.
        """
        check_columns(frame, self.record.features)
        return self._scored(self.as_served(frame))

    def predict_as_shown(self, frame: pl.DataFrame, **instead: float) -> np.ndarray:
        """Return what `predict` would with the rows' own values of features that serving fixes, or with given ones.

        Args:
            frame: Rows with the model's features.
            instead: Values by feature; the others have those of the rows.
        """
        given = [pl.lit(value, pl.Float32).alias(name) for name, value in instead.items()]
        return self._scored(frame.with_columns(given))

    def as_served(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return rows with the values that serving has in the place of those that only training knows."""
        fixed = [pl.lit(one.served, pl.Float32).alias(one.name) for one in self.features if one.served is not None]
        return frame.with_columns(fixed) if fixed else frame

    def _scored(self, frame: pl.DataFrame) -> np.ndarray:
        if not frame.height:
            return np.empty(0, np.float32)
        scores = self._probabilities_of(frame)
        assert scores.shape == (frame.height,)
        if np.isnan(scores).any():
            raise DivergedError(
                f"the {self.kind} model gives NaN for {int(np.isnan(scores).sum())} of {frame.height} rows"
            )
        return np.asarray(np.clip(scores, _SMALLEST, 1 - _SMALLEST))

    def _probabilities_of(self, frame: pl.DataFrame) -> np.ndarray:
        if self._calibration is None:
            return np.asarray(self._predict(frame), np.float32)
        return probabilities(self._calibration.applied(self._log_odds(frame)))

    def _held_out(self, learning: LearningTable) -> np.ndarray:
        """Calibrate, and return the scores of the validation rows in the order of the table, before they are learnt."""
        self._calibrate(learning)
        frames = map(self.as_served, learning.frames("validation"))
        return np.concatenate([self._probabilities_of(frame) for frame in frames])

    def _held_out_further(self, learning: LearningTable) -> dict[str, np.ndarray]:
        """Return the scores of the further labels by name, as `_held_out` does, which must have been called."""
        frames = map(self.as_served, learning.frames("validation"))
        parts = [self._probabilities_of_further(frame) for frame in frames]
        return {name: np.concatenate([part[name] for part in parts]) for name in self.section.labels}

    def predict_further(self, frame: pl.DataFrame) -> dict[str, np.ndarray]:
        """Return the probabilities of the further labels by name, as `predict` gives that of the label.

        Raises:
            DataError: A feature is missing, or a value is none the model can read.
            DivergedError: A head gives NaN.
        """
        if self.heads or not frame.height:
            return {name: self.heads[name].predict(frame) if frame.height else np.empty(0, np.float32)
                    for name in self.record.labels}  # fmt: skip
        return self._probabilities_of_further(self.as_served(frame))

    def _probabilities_of_further(self, frame: pl.DataFrame) -> dict[str, np.ndarray]:
        found = self._further_log_odds(frame)
        for name, log_odds in found.items():
            if np.isnan(log_odds).any():
                raise DivergedError(f"the {self.kind} model gives NaN for label '{name}'")
        calibrated = {
            name: self._further_calibrations[name].applied(raw) if name in self._further_calibrations else raw
            for name, raw in found.items()
        }
        return {name: np.clip(probabilities(one), _SMALLEST, 1 - _SMALLEST) for name, one in calibrated.items()}

    def log_odds(self, frame: pl.DataFrame) -> np.ndarray:
        """Return what `predict` gives the probabilities of, calibrated where that is declared, shape (rows,)."""
        raw = self._log_odds(self.as_served(frame))
        return raw if self._calibration is None else self._calibration.applied(raw)

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
            elif (found := Calibration.read(folder / HEADS / name)) is not None:
                ranker._further_calibrations[name] = found
        return ranker

    def _calibrate(self, learning: LearningTable) -> None:
        """Fit the declared calibration on the validation days, once; a kind that learns these too calls it before."""
        how = self.section.calibration
        if how == "none" or self._calibration is not None:
            return
        frames = [
            (frame[Columns.LABEL].to_numpy(), self._log_odds(frame))
            for frame in map(self.as_served, learning.frames("validation"))
        ]
        labels, log_odds = (np.concatenate(part) for part in zip(*frames, strict=True))
        self._calibration = self._fitted_calibration(how, log_odds, labels, f"models.{self.name}")
        if self.shares_body:
            for name in self.section.labels:
                parts = [
                    (frame[label_column(name)].to_numpy(), self._further_log_odds(frame)[name])
                    for frame in map(self.as_served, learning.frames("validation"))
                ]
                labels, log_odds = (np.concatenate(part) for part in zip(*parts, strict=True))
                where = f"models.{self.name}: label '{name}'"
                self._further_calibrations[name] = self._fitted_calibration(how, log_odds, labels, where)

    def _fitted_calibration(self, how: How, log_odds: np.ndarray, labels: np.ndarray, where: str) -> Calibration:
        if not np.isfinite(log_odds).all():
            raise DivergedError(f"the {self.kind} model gives NaN on the validation days; it cannot be calibrated")
        try:
            return fit_calibration(how, log_odds, labels, where)
        except DataError as problem:  # the candidate is held, and the run goes on
            raise DivergedError(str(problem)) from None

    def _further_log_odds(self, frame: pl.DataFrame) -> dict[str, np.ndarray]:
        """Return the log-odds of the further labels by name, shape (rows,) each; of a kind that shares its body."""
        return {}

    def _log_odds(self, frame: pl.DataFrame) -> np.ndarray:
        """Return what `_predict` gives the probabilities of, shape (rows,), as the exported graph computes it.

        A kind that is exported overrides it where its probabilities are rounded: near 1, little of a score is left.
        """
        scores = np.clip(self._predict(frame), _SMALLEST, 1 - _SMALLEST).astype(np.float64)
        return np.asarray(np.log(scores / (1 - scores)))

    @abstractmethod
    def _learning(self, table: DayTable) -> LearningTable:
        """Return the columns and days to learn from."""

    @abstractmethod
    def _fit(self, learning: LearningTable, runtime: Runtime, on_epoch: OnEpoch, champion: Path | None) -> Outcome:
        """Fit the weights."""

    @abstractmethod
    def _predict(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the probabilities, shape (rows,)."""

    @abstractmethod
    def _write(self, folder: Path) -> None:
        """Write the weights into a folder."""

    @abstractmethod
    def _read(self, folder: Path) -> None:
        """Read the weights from a verified folder; the record is there already."""
