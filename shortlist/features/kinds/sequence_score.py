"""How well an item follows a session, scored by a transformer trained on earlier days only."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
import polars as pl
from pydantic import BeforeValidator, Field, model_validator

from shortlist.contracts import Columns, DataError
from shortlist.features.counts.keyed import NEWEST_VALUES, KeyedView
from shortlist.features.counts.tiles import microseconds, start_of
from shortlist.features.declared.feature_interfaces import EventListFeature, TrainedFeature
from shortlist.features.declared.feature_kind import FeatureKind, FeatureName, Fitted
from shortlist.features.declared.graph import Graph
from shortlist.features.declared.joined_lists import JoinedList
from shortlist.features.declared.training_log import TrainingLog
from shortlist.features.kinds.sequence import SequenceFeature, single_key_column
from shortlist.features.kinds.session_scores import FACTS_FILE, SessionModelFacts, SessionModels
from shortlist.features.live.open_events import OpenList
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.hashing import NO_CODE
from shortlist.spec.data import Data
from shortlist.spec.features import StreamedFeature
from shortlist.storage.artefacts import IntegrityError, read_json
from shortlist.system.query_engine import Engine
from shortlist.system.registry import resolve_address
from shortlist.tracking.steps import note

KEY: Final = "key"
VALUE: Final = "value"
_SETTINGS_NOT_TRAINED: Final = {"kind", "name", "live", "sent"}
"""Settings of a row's session, which do not change what is trained."""

Trainer = Callable[["SequenceScoreFeature", pl.DataFrame, int, Path], None]


class SequenceScoreFeature(FeatureKind, EventListFeature, StreamedFeature, TrainedFeature):
    """How well a row's item follows the key's last events, scored by a transformer trained on earlier days only.

    The value is the number of standard deviations by which the item's inner product with the state of the session lies
    above the mean of all items. Days are cut into periods. Rows of a period are scored by a transformer trained on the
    events known before the period began, in training as in serving: the model that scores a row has seen neither its
    outcome nor its session nor later days. 0 where item or session are not known, and in the first period.
    """

    kind: Literal["sequence_score"]
    """How well an item follows a session; a log with a clock."""
    of: str
    """Column of the log whose values are listed and scored, usually the item."""
    key: Annotated[str, BeforeValidator(single_key_column)]
    """Column of the log whose events they are: the user, or a session."""
    last: int = Field(default=50, ge=2, le=1_000)
    """Most events of a session; older ones are left out."""
    counts: Literal["rows", "positives"] = "positives"
    """Events, learnt and scored: impressions, or those of them with a positive label."""
    live: bool = False
    """Whether events of the open tiles belong to the session too, as servers keep them. Needs `features.streaming`."""
    sent: str | None = None
    """Column of the log, of type tags, in which a request may bring a session of its own, newest first: it replaces the
    stored one for this request, as for users without a key. Null: requests bring none."""
    name: FeatureName
    """Name of the feature."""
    refit_days: int = Field(default=7, ge=1, le=365)
    """Days of a period, counted from 0001-01-01 on, so that periods stay where they are as the log grows. A fit trains
    a transformer for each period that an earlier fit has not trained."""
    window_days: int | None = Field(default=None, ge=1, le=3_650)
    """Days before a period that are learnt; null: all."""
    embedding_dim: int = Field(default=64, ge=2, le=1_024)
    """Numbers of an item's vector."""
    blocks: int = Field(default=1, ge=1, le=12)
    """Transformer blocks."""
    heads: int = Field(default=2, ge=1, le=64)
    """Attention heads; they divide the vector among them."""
    epochs: int = Field(default=20, ge=1, le=1_000)
    """Passes over the sessions."""
    batch_events: int = Field(default=512, ge=8, le=1_000_000)
    """Events of a step, about; what follows one is a negative for the others."""
    sampled_negatives: int = Field(default=1_024, ge=1, le=1_000_000)
    """Further items of a step, drawn uniformly from all that are learnt: negatives for all its events."""
    learning_rate: float = Field(default=0.002, gt=0.0, le=1.0)
    """Learning rate of Adam."""
    dropout: float = Field(default=0.3, ge=0.0, lt=1.0)
    """Share of activations that are left out in a step."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if self.embedding_dim % self.heads:
            raise ValueError(f"embedding_dim {self.embedding_dim} is no multiple of heads {self.heads}")
        return self

    @property
    def outputs(self) -> tuple[str, ...]:
        """Name of the feature."""
        return (self.name,)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The key, the scored column, and the session that a request may send."""
        return tuple(dict.fromkeys((self.key, self.of, *self._session.inputs)))

    @property
    def read_as_keys(self) -> tuple[str, ...]:
        """The key, and the scored column."""
        return tuple(dict.fromkeys((self.key, self.of)))

    @property
    def streamed(self) -> tuple[str, ...]:
        """The key, where events are listed as they arrive."""
        return self._session.streamed

    def check(self, data: Data) -> None:
        """Check also that events have a time, and that a session can be kept or sent."""
        super().check(data)
        self._session.check(data)

    def views(self, declared: DeclaredColumns) -> Iterator[KeyedView]:
        """Return the newest events of the key."""
        return self._session.views(declared)

    def open_list(self, declared: DeclaredColumns) -> OpenList | None:
        """Return the list of events of the open tiles; None where events are not live."""
        return self._session.open_list(declared)

    def joined_list(self, declared: DeclaredColumns) -> JoinedList | None:
        """Return the list that is joined after the look-up; None where the view holds the whole list."""
        return self._session.joined_list(declared)

    def train(self, training_log: TrainingLog, folder: Path) -> None:
        """Train a model for every period that has days of the log; reuse those of an earlier fit.

        Raises:
            DataError: No training day lies in or after a period that has a model.
        """
        days = sorted(training_log.log.by_day)
        events = self._events(training_log)
        starts = sorted({self._period_start(day) for day in days if day not in training_log.split.warmup})
        models = [
            start for start in starts if self._train_period(start, events, training_log, folder / start.isoformat())
        ]
        scored = [day for day in training_log.split.train if models and day >= models[0]]
        if not scored:
            raise DataError(
                f"{self.title}: no training day would have a score: what a period's rows are scored by is learnt from"
                f" the days before the period, and the log has {len(days)} days in periods of {self.refit_days}."
                " Declare fewer refit_days, or give a longer log"
            )
        if len(scored) < len(training_log.split.train):
            note(
                f"{self.title}: {len(training_log.split.train) - len(scored)} of {len(training_log.split.train)}"
                f" training days lie before {models[0]}, the first period with a model; their scores are 0"
            )
        served_from = min((*training_log.split.validation, *training_log.split.test, days[-1]))
        names = [start.isoformat() for start in models]
        SessionModels(folder).write_index(names, served_from, training_log.declared.timezone)

    def load_trained(self, folder: Path) -> SessionModels:
        """Return the models."""
        return SessionModels(folder)

    def compute(self, rows: pl.DataFrame, fitted: Fitted, engine: Engine) -> Iterator[pl.Series]:
        """Yield the scores."""
        sessions, items = rows[self._session_column(fitted.declared)], rows[fitted.declared.row_column(self.of)]
        models: SessionModels = fitted.trained[self.name]
        yield pl.Series(self.name, models.scores(rows[Columns.TIME], sessions, items))

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, feature_outputs: Sequence[tuple[Self, int]]) -> str:
        """Compile the scores."""
        return graph.concat([feature._score_nodes(graph, fitted) for feature, _ in feature_outputs])

    def _score_nodes(self, graph: Graph, fitted: Fitted) -> str:
        sessions, runs = graph.list_codes_by_run(self._session_column(fitted.declared), self.last)
        first = np.array([0])
        # A request may send empty lists only; attention needs at least one position.
        session_count = graph.add("Slice", graph.add("Shape", sessions), first, np.array([1]))
        padding = graph.add("Expand", np.array([[NO_CODE]]), graph.add("Concat", session_count, np.array([1]), axis=0))
        sessions = graph.add("Concat", sessions, padding, axis=1)
        items = graph.add("Squeeze", graph.codes([self.of], "an item that is scored"), first)
        times = graph.add("Squeeze", graph.numbers([Columns.TIME]), first)
        models: SessionModels = fitted.trained[self.name]
        return graph.add("Unsqueeze", models.nodes(graph, times, sessions, runs, items), first)

    @property
    def _session(self) -> SequenceFeature:
        """The session as a sequence feature whose messages name this kind."""
        sequence = SequenceFeature(
            kind="sequence", of=self.of, key=self.key, last=self.last, counts=self.counts, live=self.live,
            sent=self.sent, name=self.name,
        )  # fmt: skip
        return sequence.model_copy(update={"kind": self.kind})

    def _session_column(self, declared: DeclaredColumns) -> str:
        return self._session.row_column(declared, NEWEST_VALUES)

    def _period_start(self, day: date) -> date:
        return date.fromordinal(max(1, day.toordinal() // self.refit_days * self.refit_days))

    def _events(self, training_log: TrainingLog) -> pl.DataFrame:
        """Return the events of the whole log, by key and in order of time."""
        declared = training_log.declared
        events = training_log.log.scan()
        if self.counts == "positives":
            events = events.filter(pl.col(Columns.LABEL) == 1)
        key_and_value = events.select(
            pl.col(declared.log_column(self.key)).alias(KEY),
            pl.col(declared.log_column(self.of)).alias(VALUE),
            Columns.TIME,
        )
        return key_and_value.drop_nulls().collect().sort(KEY, Columns.TIME, maintain_order=True)

    def _train_period(self, start: date, events: pl.DataFrame, training_log: TrainingLog, folder: Path) -> bool:
        """Write the model of a period; return whether there are events to train on."""
        timezone = training_log.declared.timezone
        first_day = date.min if self.window_days is None else start - timedelta(days=self.window_days)
        window_start, period_start = (
            None if boundary == date.min else start_of(boundary, timezone) for boundary in (first_day, start)
        )
        assert period_start is not None
        known_events = events.filter(pl.col(Columns.TIME) + training_log.delay < period_start)
        if window_start is not None:
            known_events = known_events.filter(pl.col(Columns.TIME) >= window_start)
        if not known_events[KEY].is_duplicated().any():
            return False
        days = {
            day.isoformat(): training_log.digests[day] for day in training_log.log.by_day if first_day <= day < start
        }
        settings = self.model_dump(mode="json", exclude=_SETTINGS_NOT_TRAINED) | {
            "delay": training_log.delay.total_seconds()
        }
        settings |= {"seed": training_log.seed, "timezone": timezone}
        if training_log.previous_folder is not None and self._is_reusable(
            training_log.previous_folder / start.isoformat(), days, settings, training_log
        ):
            shutil.copytree(training_log.previous_folder / start.isoformat(), folder)
            return True
        folder.mkdir()
        trainer: Trainer = resolve_address("networks").load("train_sequence_score")
        trainer(self, known_events.select(KEY, VALUE), training_log.seed, folder)
        newest_event_us = known_events[Columns.TIME].dt.epoch("us").max()
        assert isinstance(newest_event_us, int)
        facts = SessionModelFacts(
            microseconds(period_start),
            newest_event_us + training_log.delay // timedelta(microseconds=1),
            days,
            settings,
        )
        facts.write(folder)
        return True

    def _is_reusable(
        self, previous_folder: Path, days: dict[str, str], settings: dict[str, Any], training_log: TrainingLog
    ) -> bool:
        """Return whether an earlier fit trained on the same days; days before the log's first one may be gone."""
        try:
            facts = SessionModelFacts(**read_json(previous_folder / FACTS_FILE))
        except IntegrityError:
            return False
        oldest = min(training_log.log.by_day).isoformat()
        digests_in_log = {day: digest for day, digest in facts.days.items() if day >= oldest}
        return facts.settings == settings and digests_in_log == days
