"""The `features` section: how columns become what a model reads."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Self

from pydantic import BeforeValidator, Field, model_validator

from shortlist.contracts import LIVE_COLUMNS, Columns, did_you_mean
from shortlist.spec.base import OneOf, Section, expand_names
from shortlist.spec.data import Column, Data, SideTable
from shortlist.spec.durations import Duration, length_of

_LEARNING: Final = {"admit_after": 1, "evict_after_days": None}
"""Settings of learning with their values when a feature says nothing."""


_SHORTEST_TILE: Final = timedelta(minutes=10)
_LONGEST_STREAMING_DELAY: Final = timedelta(minutes=10)


class Feature(Section):
    """An operation that gives one or more named features; see `shortlist.features.kinds` for what each kind does."""

    if TYPE_CHECKING:  # a field of every kind, at its place among the kind's own
        kind: str

    column_types: ClassVar[tuple[str, ...]] = ()
    """Types that `inputs` may have; empty: any."""
    compares_candidates: ClassVar[bool] = False
    """Whether its values depend on the other candidates of the request."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the features."""
        raise NotImplementedError

    @property
    def inputs(self) -> tuple[str, ...]:
        """Declared columns it reads of the impression itself, so that none may be known only afterwards."""
        raise NotImplementedError

    @property
    def reads_features(self) -> tuple[str, ...]:
        """Names of other features that it reads."""
        return ()

    @property
    def read_as_keys(self) -> tuple[str, ...]:
        """The inputs whose values are identifiers and not numbers; drift compares their frequent values."""
        return ()

    @property
    def streamed(self) -> tuple[str, ...]:
        """Columns by whose values events are counted or listed as they arrive."""
        return ()

    @property
    def learning(self) -> dict[str, Any]:
        """What a trainer is told of the feature's ids: `hashed`, `admit_after`, `evict_after_days`."""
        return {}

    @property
    def declared_learning(self) -> list[str]:
        """The keys by which the feature says how its embeddings are learnt, where they say anything."""
        return [key for key, default in _LEARNING.items() if self.learning.get(key, default) != default]

    @property
    def title(self) -> str:
        """What messages about it begin with."""
        return f"features: {self.kind} '{self.outputs[0]}'"

    def check(self, data: Data) -> None:
        """Check the operation against the declared columns.

        Raises:
            ValueError: It reads what is not declared, of another type, or known only after the impression.
        """
        for name in self.inputs:
            column = declared_column(name, data, self.title)
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


def declared_column(name: str, data: Data, where: str) -> Column:
    """Return a declared column.

    Args:
        name: Its name.
        data: The log's declaration.
        where: What the message begins with.

    Raises:
        ValueError: There is none.
    """
    if data.live.collect and name in LIVE_COLUMNS:
        raise ValueError(f"{where}: '{name}' tells who served a row; it may be one of gates.slices, and nothing else")
    if name not in data.by_name:
        raise ValueError(f"{where}: '{name}' is not a declared column{did_you_mean(name, data.by_name)}")
    return data.by_name[name]


def owner_of(name: str, data: Data) -> SideTable | None:
    """Return the side table that declares a column; None for a column of the log."""
    return next((table for table in data.side_tables if name in {column.name for column in table.columns}), None)


def check_is_outcome(name: str, data: Data, where: str) -> None:
    """Raise ValueError where a column, which may be known only after the impression, is not a number."""
    if declared_column(name, data, where).type not in ("integer", "number"):
        raise ValueError(f"{where}: '{name}' is of type {data.by_name[name].type}; wanted integer or number")


def check_is_history(name: str, data: Data, where: str) -> None:
    """Raise ValueError where a column is not a list of items in the user's side table."""
    column = declared_column(name, data, where)
    owner = owner_of(name, data)
    if column.type != "tags" or owner is None or data.user is None or owner.key != data.user or data.item is None:
        raise ValueError(
            f"{where}: '{name}' must be a tags column, holding item keys, of a side table keyed by the user"
        )
    if column.known == "after":
        raise ValueError(f"{where}: '{name}' is declared `known: after`; a history is from before the log")


def _one_per_key(columns: object) -> object:
    """Replace an operation whose name holds `{key}` by one operation per key column."""
    if not isinstance(columns, list | tuple):
        return columns
    spread: list[object] = []
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
            spread += [{**column, "key": [key], "name": column["name"].replace("{key}", key)} for key in keys]
        else:
            spread.append(column)
    return tuple(spread)


AnyFeature = Annotated[Feature, OneOf("shortlist.features.kinds.registry:FEATURE_KINDS")]


class Streaming(Section):
    """Counting events as they arrive, for features of kind `current`, and listing them for sequences with `live`."""

    delay: Duration = "500ms"
    """How long after an impression it counts, 0s to 10m: longer than servers need to count it, so that training, which
    keeps the delay, sees what they see."""
    max_bytes: int = Field(default=2**30, ge=2**20, le=2**40)
    """Memory of the events that a server keeps for sequences with `live`; beyond it, it forgets the users or sessions
    that rested longest, until their tile is complete."""
    max_count_bytes: int = Field(default=2**30, ge=2**20, le=2**40)
    """Memory of the counts of the open tiles, and of the requests whose outcomes may come, that a server keeps; beyond
    it, further rows and values are not counted until a tile is complete, and an alert says so."""

    @model_validator(mode="after")
    def _delay_is_short(self) -> Self:
        if length_of(self.delay) > _LONGEST_STREAMING_DELAY:
            raise ValueError(f"delay: got {self.delay}; wanted at most 10m, the shortest tile")
        return self


def _switched(streaming: object) -> object:
    """Read `true` as the defaults, and `false` as none."""
    return ({} if streaming else None) if isinstance(streaming, bool) else streaming


class Features(Section):
    """The features of a run, in order."""

    columns: Annotated[tuple[AnyFeature, ...], BeforeValidator(_one_per_key)] = Field(min_length=1)
    """Operations; each gives one or more named features."""
    tile: Duration = "1d"
    """Grain of all statistics, 10m to 1d, which it divides: an impression sees the tiles that were complete, with their
    outcomes known (`data.outcome_delay`), when it happened. In a log without a clock, tiles of as many rows each."""

    streaming: Annotated[Streaming | None, BeforeValidator(_switched)] = None
    """Whether servers count events of the open tiles as they arrive, for features of kind `current` and sequences with
    `live`: `true`, or `{delay: 2s}`. Null: they do not."""

    @model_validator(mode="after")
    def _streaming_is_read(self) -> Self:
        readers = [feature for feature in self.columns if feature.streamed]
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
        length, day = length_of(self.tile), timedelta(days=1)
        if not _SHORTEST_TILE <= length <= day or day % length:
            raise ValueError(
                f"tile: {self.tile} is no part of a day; wanted a length from 10m to 1d that divides 1d, such as 10m,"
                " 1h or 6h"
            )
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        seen: set[str] = set()
        for name in self.names:
            if name in seen:
                raise ValueError(f"two features are named '{name}'; give one of them another name or suffix")
            if name in (Columns.LABEL, Columns.TIME, Columns.DAY, Columns.IMPRESSION, Columns.USER, Columns.ITEM):
                raise ValueError(f"feature name '{name}' is Shortlist's own")
            seen.add(name)
        for feature in self.columns:
            for name in feature.reads_features:
                if name not in seen:
                    raise ValueError(f"{feature.title}: no feature is named '{name}'{did_you_mean(name, seen)}")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Every feature's name, in declared order."""
        return tuple(name for feature in self.columns for name in feature.outputs)
