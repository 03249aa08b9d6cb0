"""The `features` section: how columns become features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Self, final

from pydantic import BeforeValidator, Field, model_validator

from shortlist.contracts import LIVE_COLUMNS, Columns, did_you_mean
from shortlist.spec.base import RegisteredSection, Section, expand_names
from shortlist.spec.data import Column, Data, SideTable
from shortlist.spec.text.durations import Duration, parse_duration

_LEARNING_DEFAULTS: Final = {"admit_after": 1, "evict_after_days": None}
"""Learning settings of a feature's ids, with their default values."""


_MIN_TILE: Final = timedelta(minutes=10)
_MAX_STREAMING_DELAY: Final = timedelta(minutes=10)


class Feature(Section):
    """An operation that computes one or more named features; the kinds are in `shortlist.features.kinds`."""

    if TYPE_CHECKING:  # a field of every kind, at its place among the kind's own
        kind: str

    column_types: ClassVar[tuple[str, ...]] = ()
    """Types that `inputs` may have; empty: any."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the features."""
        raise NotImplementedError

    @property
    def inputs(self) -> tuple[str, ...]:
        """Declared columns that it reads of the impression itself; none may be known only afterwards."""
        raise NotImplementedError

    @property
    def read_as_keys(self) -> tuple[str, ...]:
        """Inputs whose values are identifiers, not numbers; drift compares their frequent values."""
        return ()

    @property
    @final
    def declared_learning_keys(self) -> list[str]:
        """Keys of the learning settings that differ from their defaults."""
        learning = self.learning if isinstance(self, LearningSettings) else {}
        return [key for key, default in _LEARNING_DEFAULTS.items() if learning.get(key, default) != default]

    @property
    @final
    def title(self) -> str:
        """Beginning of messages about the feature."""
        return f"features: {self.kind} '{self.outputs[0]}'"

    def check(self, data: Data) -> None:
        """Check the operation against the declared columns.

        Raises:
            ValueError: It reads what is not declared, of another type, or known only after the impression.
        """
        for name in self.inputs:
            column = declared_column(name, data, self.title)
            refuse_placement(name, data, self.title)
            if column.known == "after" or name == data.label:
                raise ValueError(
                    f"{self.title}: '{name}' is known only after the impression; a feature of the same row would leak"
                    " the label. A target or lag over earlier days may use it."
                )
            if name == data.request:
                raise ValueError(f"{self.title}: '{name}' names the request, which no later row shares; leave it out")
            if self.column_types and column.type not in self.column_types:
                raise ValueError(
                    f"{self.title}: '{name}' is of type {column.type}; wanted {' or '.join(self.column_types)}"
                )


class LearningSettings(ABC):
    """Settings for training models on a feature. Implemented by kinds that pass such settings to trainers."""

    @property
    @abstractmethod
    def learning(self) -> dict[str, Any]:
        """Settings noted with the columns of the table: `hashed`, `admit_after`, `evict_after_days`, `served`."""


class StreamedFeature(ABC):
    """A feature of live events. Implemented by kinds that read events which statistics do not include yet."""

    @property
    @abstractmethod
    def streamed(self) -> tuple[str, ...]:
        """Columns by whose values events are counted or listed as they arrive; empty where none are."""


class FeatureReader(ABC):
    """A feature of other features. Implemented by kinds that read what is declared before them."""

    @property
    @abstractmethod
    def reads_features(self) -> tuple[str, ...]:
        """Names of other features that it reads."""


class CandidateComparison(FeatureReader):
    """A feature that depends on the other candidates of a request. Implemented by kinds that compare them."""


def streamed_columns(feature: Feature) -> tuple[str, ...]:
    """Return the columns by whose values a feature counts or lists events as they arrive."""
    return feature.streamed if isinstance(feature, StreamedFeature) else ()


def declared_column(name: str, data: Data, location: str) -> Column:
    """Return a declared column.

    Args:
        name: Its name.
        data: The log's declaration.
        location: Beginning of the message: where in the spec the column is named.

    Raises:
        ValueError: There is none.
    """
    if data.live.collect and name in LIVE_COLUMNS:
        raise ValueError(
            f"{location}: '{name}' tells who served a row; it may be one of gates.slices, and nothing else"
        )
    if name not in data.by_name:
        raise ValueError(f"{location}: '{name}' is not a declared column{did_you_mean(name, data.by_name)}")
    return data.by_name[name]


def refuse_placement(name: str, data: Data, location: str) -> None:
    """Raise ValueError for a column that says how a row was shown, which is no feature of this or of later rows."""
    role = next((role for role, column in data.placement.items() if column == name), None)
    if role is not None:
        hint = f"; declare {{kind: training_only, each: {name}, serve: 1}}" if role == "position" else ""
        raise ValueError(f"{location}: '{name}' is data.{role}, which says how a row was shown and is no feature{hint}")


def owner_of(name: str, data: Data) -> SideTable | None:
    """Return the side table that declares a column; None for a column of the log."""
    return next((table for table in data.side_tables if name in {column.name for column in table.columns}), None)


def check_is_outcome(name: str, data: Data, location: str) -> None:
    """Raise ValueError where a column that may be an outcome is not a number."""
    refuse_placement(name, data, location)
    if declared_column(name, data, location).type not in ("integer", "number"):
        raise ValueError(f"{location}: '{name}' is of type {data.by_name[name].type}; wanted integer or number")


def check_is_history(name: str, data: Data, location: str) -> None:
    """Raise ValueError where a column is not a list of items in the user's side table."""
    column = declared_column(name, data, location)
    owner = owner_of(name, data)
    if column.type != "tags" or owner is None or data.user is None or owner.key != data.user or data.item is None:
        raise ValueError(
            f"{location}: '{name}' must be a tags column, holding item keys, of a side table keyed by the user"
        )
    if column.known == "after":
        raise ValueError(f"{location}: '{name}' is declared `known: after`; a history is from before the log")


def _expand_key_placeholder(columns: object) -> object:
    """Replace an operation whose name holds `{key}` by one operation per key column."""
    if not isinstance(columns, list | tuple):
        return columns
    expanded: list[object] = []
    for column in columns:
        if isinstance(column, dict) and "{key}" in str(column.get("name")) and column.get("key") in (None, [], ()):
            raise ValueError(f"'{column['name']}': {{key}} stands for a column of `key`, which names none; name one")
        if (
            isinstance(column, dict)
            and "{key}" in str(column.get("name"))
            and isinstance(column.get("key"), str | list)
        ):
            patterns = [column["key"]] if isinstance(column["key"], str) else column["key"]
            keys = [key for pattern in patterns for key in expand_names(str(pattern))]
            expanded += [{**column, "key": [key], "name": column["name"].replace("{key}", key)} for key in keys]
        else:
            expanded.append(column)
    return tuple(expanded)


AnyFeature = Annotated[Feature, RegisteredSection("feature_kinds")]


class Streaming(Section):
    """Counts of events as they arrive, for features of kind `current`, and lists of them for sequences with `live`."""

    delay: Duration = "500ms"
    """Time after an impression until it counts, 0s to 10m: longer than servers need to count it, so that training,
    which uses the same delay, has the same values."""
    max_bytes: int = Field(default=2**30, ge=2**20, le=2**40)
    """Memory for the events that a server keeps for sequences with `live`; above it, the least recently active users
    or sessions are dropped until their tile is complete."""
    max_count_bytes: int = Field(default=2**30, ge=2**20, le=2**40)
    """Memory for a server's counts of the open tiles and for requests that wait for outcomes; above it, further rows
    and values are not counted until a tile is complete, and an alert is raised."""

    @model_validator(mode="after")
    def _delay_is_short(self) -> Self:
        if parse_duration(self.delay) > _MAX_STREAMING_DELAY:
            raise ValueError(f"delay: got {self.delay}; wanted at most 10m, the shortest tile")
        return self


def _parse_streaming(streaming: object) -> object:
    """Return the defaults for `true`, None for `false`."""
    return ({} if streaming else None) if isinstance(streaming, bool) else streaming


class Features(Section):
    """The features of a run, in order."""

    columns: Annotated[tuple[AnyFeature, ...], BeforeValidator(_expand_key_placeholder)] = Field(min_length=1)
    """Operations; each computes one or more named features."""
    tile: Duration = "1d"
    """Time grain of all statistics, 10m to 1d, a divisor of 1d. An impression reads the tiles that were complete, with
    their outcomes known (`data.outcome_delay`), at its time. In a log without a clock, tiles have equal row counts."""

    streaming: Annotated[Streaming | None, BeforeValidator(_parse_streaming)] = None
    """Whether servers count events of the open tiles as they arrive, for features of kind `current` and sequences with
    `live`: `true`, or `{delay: 2s}`. Null: they do not."""

    @model_validator(mode="after")
    def _streaming_is_read(self) -> Self:
        readers = [feature for feature in self.columns if streamed_columns(feature)]
        if readers and self.streaming is None:
            raise ValueError(
                f"{readers[0].title}: nothing counts events as they arrive; declare features.streaming: true"
            )
        if self.streaming is not None and not readers:
            raise ValueError(
                "streaming: no feature of kind current, and no sequence with live: true, reads what is counted; declare"
                " one, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _tile_divides_a_day(self) -> Self:
        length, day = parse_duration(self.tile), timedelta(days=1)
        if not _MIN_TILE <= length <= day or day % length:
            raise ValueError(
                f"tile: {self.tile} is no part of a day; wanted a length from 10m to 1d that divides 1d, such as 10m,"
                " 1h or 6h"
            )
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        earlier_names: set[str] = set()
        for name in self.names:
            if name in earlier_names:
                raise ValueError(f"two features are named '{name}'; give one of them another name or suffix")
            if name in (Columns.LABEL, Columns.TIME, Columns.DAY, Columns.IMPRESSION, Columns.USER, Columns.ITEM):
                raise ValueError(f"feature name '{name}' is Shortlist's own")
            earlier_names.add(name)
        return self

    @model_validator(mode="after")
    def _expressions_read_earlier_features(self) -> Self:
        earlier_features: dict[str, Feature] = {}
        for feature in self.columns:
            for name in feature.reads_features if isinstance(feature, FeatureReader) else ():
                if name not in earlier_features:
                    problem = (
                        f"'{name}' is declared after it; move it up"
                        if name in self.names
                        else f"no feature is named '{name}'{did_you_mean(name, earlier_features)}"
                    )
                    raise ValueError(f"{feature.title}: {problem}")
                source = earlier_features[name]
                if isinstance(source, LearningSettings) and "served" in source.learning:
                    raise ValueError(f"{feature.title}: '{name}' has its values in training only; read another feature")
            earlier_features |= dict.fromkeys(feature.outputs, feature)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Every feature's name, in declared order."""
        return tuple(name for feature in self.columns for name in feature.outputs)
