"""The last items of a key, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

import numpy as np
import polars as pl
from pydantic import BeforeValidator, ConfigDict, Field

from shortlist.contracts import Columns
from shortlist.features.counts.keyed import NEWEST_TIMES, NEWEST_VALUES, KeyedView, NewestEvents
from shortlist.features.counts.vocabulary import VocabularyLimits
from shortlist.features.declared.feature_interfaces import DeclaredIds, EventListFeature, IdOutputs, VectorOutputs
from shortlist.features.declared.feature_kind import FeatureKind, FeatureName, Fitted, OutputForm, view_column
from shortlist.features.declared.graph import Graph
from shortlist.features.declared.joined_lists import ItemColumn, JoinedList
from shortlist.features.kinds.vocabulary import vocabulary_id_nodes
from shortlist.features.live.open_events import OpenList
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.hashing import NO_CODE
from shortlist.features.values.lists import map_values
from shortlist.features.values.vectors import Matrix, matrix, vector_series
from shortlist.spec.base import Names
from shortlist.spec.data import Data, RowClock, SideTable
from shortlist.spec.features import StreamedFeature, declared_column, owner_of, refuse_placement
from shortlist.system.query_engine import Engine

SECONDS_AGO: Final = "seconds_ago"
_MICROSECONDS: Final = 1_000_000.0


def single_key_column(key: object) -> object:
    """Return the column of a key that is a list of one column; any other key as it is."""
    return key[0] if isinstance(key, list | tuple) and len(key) == 1 else key


class SequenceFeature(FeatureKind, IdOutputs, VectorOutputs, EventListFeature, StreamedFeature):
    """The values of a column at a key's last events, as a list of ids: the newest event first.

    Numbers of the events are vectors, `last` wide: number k belongs to id k, and is 0 where there is no event. A value
    that is not in the vocabulary has the id 0 in the list.
    """

    kind: Literal["sequence"]
    """Last events of a key, in order; a log with a clock."""
    of: str
    """Column of the log whose values are listed, usually the item."""
    key: Annotated[str, BeforeValidator(single_key_column)]
    """Column of the log whose events they are: the user, or a session."""
    last: int = Field(default=50, ge=1, le=1_000)
    """Most events; older ones are left out, however long a session is."""
    event_columns: Names = Field(
        default=(),
        alias="with",
        description="What stands beside every event, named `<name>_<column>`: `seconds_ago`, which is log(1 + seconds)"
        " from the event to this impression; numeric columns of the log, outcomes allowed; columns of the listed item's"
        " side table. Numbers give a vector, other columns a list of ids, of several tags the first one.",
    )
    counts: Literal["rows", "positives"] = "rows"
    """Events: impressions, or those of them with a positive label."""
    live: bool = False
    """Whether events of the open tiles are listed too, as servers keep them: the newest is seconds old. Needs
    `features.streaming`. Numbers known after the impression are 0 until its tile is complete."""
    sent: str | None = None
    """Column of the log, of type tags, in which a request may bring a list of its own, newest first: it replaces the
    stored one for this request, as for users without a key. Null: requests bring none."""
    sent_times: str | None = None
    """Column of the log, of type tags with integers, in which a request brings the times of the events in `sent`, one
    for each, in microseconds since 1970-01-01 UTC. Wanted for `seconds_ago`."""
    name: FeatureName
    """Name of the feature."""
    min_rows: int = Field(default=1, ge=1)
    """Training rows a value needs to get an id of its own; as in a vocabulary of the same column."""
    max_size: int = Field(default=10_000_000, ge=2)
    """Most ids, the unknown one among them; as in a vocabulary of the same column."""

    model_config = ConfigDict(serialize_by_alias=True)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the list, and of the columns of its events."""
        return (self.name, *(f"{self.name}_{column}" for column in self.event_columns))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The key, and the list that a request may send; nothing else of the impression itself is read."""
        return (self.key, *self._sent_columns)

    @property
    def read_as_keys(self) -> tuple[str, ...]:
        """The key."""
        return (self.key,)

    @property
    def streamed(self) -> tuple[str, ...]:
        """The key, where events are listed as they arrive."""
        return (self.key,) if self.live else ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The key, the listed column, and the columns of the events."""
        return (self.key, self.of, *self._sent_columns, *self._declared_event_columns)

    def check(self, data: Data) -> None:
        """Check also that events have a time, and that values and numbers are the log's."""
        super().check(data)
        if isinstance(data.clock, RowClock):
            raise ValueError(
                f"{self.title}: rows of this log have no times of their own, so nothing says which events came before;"
                " declare data.clock: {kind: column}"
            )
        for name in (self.key, self.of, *self._declared_event_columns):
            self._check_column(name, data)
        self._check_sent(data)
        if self.live:
            self._check_live(data)

    def _check_column(self, name: str, data: Data) -> None:
        column_type, side_table = declared_column(name, data, self.title).type, _side_table_of(name, data)
        refuse_placement(name, data, self.title)
        allowed_types: tuple[str, ...] = ("integer", "number")
        if name in (self.key, self.of):
            allowed_types = ("integer", "hex", "string")
        elif side_table is not None:
            allowed_types = ("integer", "number", "hex", "string", "tags")
        if side_table is not None and (name in (self.key, self.of) or side_table.key != self.of):
            raise ValueError(
                f"{self.title}: '{name}' is a column of a side table; events have columns of the log, and of the side"
                f" table whose key is '{self.of}'"
            )
        if column_type not in allowed_types:
            raise ValueError(f"{self.title}: '{name}' is of type {column_type}; wanted {' or '.join(allowed_types)}")

    def _check_sent(self, data: Data) -> None:
        if self.sent_times is not None and self.sent is None:
            raise ValueError(f"{self.title}: sent_times has times of no list; declare `sent`, or leave it out")
        if self.sent is not None and SECONDS_AGO in self.event_columns and self.sent_times is None:
            raise ValueError(
                f"{self.title}: nothing says when the events in '{self.sent}' happened; declare sent_times, or leave"
                f" '{SECONDS_AGO}' out of `with`"
            )
        is_text = data.by_name[self.of].type == "string"
        for name, tag_type in ((self.sent, "string" if is_text else "integer"), (self.sent_times, "integer")):
            if name is not None and _side_table_of(name, data) is not None:
                raise ValueError(
                    f"{self.title}: '{name}' is a column of a side table; requests send columns of the log"
                )
            if name is not None and (data.by_name[name].type, data.by_name[name].tag_type) != ("tags", tag_type):
                raise ValueError(
                    f"{self.title}: '{name}' holds no list of {tag_type}s; wanted type: tags, tag_type: {tag_type}"
                )

    def _check_live(self, data: Data) -> None:
        if self.counts == "positives" and data.outcome_delay is None:
            raise ValueError(
                f"{self.title}: nothing says when an outcome is known; declare data.outcome_delay, so that training"
                " lists no positive event sooner than a server can"
            )
        unsent_columns = [name for name in (self.key, self.of) if data.by_name[name].known == "after"]
        if unsent_columns:
            raise ValueError(
                f"{self.title}: requests do not send '{unsent_columns[0]}' (known: after), so that servers cannot list"
                " it; leave live out"
            )

    def forms(self, declared: DeclaredColumns) -> list[OutputForm]:
        """Return a list of ids, and vectors or further lists."""
        return ["ids", *("ids" if self._is_category(name, declared) else "vector" for name in self.event_columns)]

    def views(self, declared: DeclaredColumns) -> Iterator[KeyedView]:
        """Return the newest events of the key."""
        yield self._view(declared)

    def open_list(self, declared: DeclaredColumns) -> OpenList | None:
        """Return the list of events of the open tiles; None where events are not live."""
        view, log_column = self._view(declared), declared.log_column
        columns_known_before = tuple(
            log_column(name) for name in self._logged_columns(declared) if declared.column(name).known == "before"
        )
        positives = self.counts == "positives"
        open_list = OpenList(
            view.name, log_column(self.key), log_column(self.of), self.last, positives, columns_known_before
        )
        return open_list if self.live else None

    def joined_list(self, declared: DeclaredColumns) -> JoinedList | None:
        """Return the list that is joined after the look-up; None where the view holds the whole list."""
        items = tuple(
            ItemColumn(owner.name, declared.log_column(owner.key), name, not self._is_category(name, declared))
            for name in self._declared_event_columns
            if (owner := declared.side_table_of(name)) is not None
        )
        view, open_list = self._view(declared), self.open_list(declared)
        if open_list is None and self.sent is None and not items:
            return None
        assert view.newest is not None
        return JoinedList(
            view.name, declared.log_column(self.of), self.last, open_list, self.sent or "", self.sent_times or "",
            view.newest.numbers, items,
        )  # fmt: skip

    def vocabularies(self, declared: DeclaredColumns) -> Iterator[VocabularyLimits]:
        """Return the limits of the listed column, and of columns of its side table that are no numbers."""
        categories = (name for name in self._declared_event_columns if self._is_category(name, declared))
        yield from (VocabularyLimits(name, self.min_rows, self.max_size) for name in (self.of, *categories))

    def id_count(self, output: int, fitted: Fitted) -> int:
        """Return the size of the vocabulary."""
        return fitted.vocabularies[self._id_column(output, fitted.declared)].size

    def width(self, output: int, fitted: Fitted) -> int:
        """Return the number of events."""
        return self.last

    def declared_ids(self, output: int, declared: DeclaredColumns) -> DeclaredIds:
        """Return as many ids as there are values, `max_size` at most."""
        return DeclaredIds(self.max_size, self._id_column(output, declared), self.last)

    def max_events(self, output: int) -> int | None:
        """Return the most events of the list, and of the columns of its events."""
        return self.last

    def compute(self, rows: pl.DataFrame, fitted: Fitted, engine: Engine) -> Iterator[pl.Series]:
        """Yield the ids and the numbers."""
        for index, output in enumerate(self.outputs):
            column = self._vocabulary_column(index, fitted.declared)
            if column is not None:
                values = rows[self.row_column(fitted.declared, self._view_feature(index, fitted.declared))]
                yield map_values(values, fitted.vocabularies[column].ids).alias(output)
            elif self.event_columns[index - 1] == SECONDS_AGO:
                yield vector_series(output, self._seconds_ago(rows, fitted.declared))
            else:
                values = rows[self.row_column(fitted.declared, self._view_feature(index, fitted.declared))]
                yield vector_series(output, matrix(values, self.last))

    def list_nodes(self, graph: Graph, fitted: Fitted, output: int) -> tuple[str, str]:
        """Compile the ids."""
        column = self._id_column(output, fitted.declared)
        codes = graph.list_codes(
            self.row_column(fitted.declared, self._view_feature(output, fitted.declared)), self.last
        )
        is_present = graph.add("Not", graph.add("Equal", codes, np.array([NO_CODE])))
        return vocabulary_id_nodes(graph, codes, column, fitted), is_present

    def vector_nodes(self, graph: Graph, fitted: Fitted, output: int) -> str:
        """Compile the numbers."""
        if self.event_columns[output - 1] != SECONDS_AGO:
            return graph.vector(
                self.row_column(fitted.declared, self._view_feature(output, fitted.declared)), self.last
            )
        times = graph.list_codes(self.row_column(fitted.declared, NEWEST_TIMES), self.last)
        padded_times = self._pad_to_last(graph, times)
        is_present = graph.add("Not", graph.add("Equal", padded_times, np.array([NO_CODE])))
        now = graph.transpose(graph.numbers([Columns.TIME]))
        elapsed = graph.add("Sub", now, graph.add("Cast", padded_times, to=_DOUBLE))
        seconds = graph.clip_min(graph.add("Div", elapsed, np.array([_MICROSECONDS])), np.zeros(1))
        logged = graph.add("Where", is_present, graph.log1p(seconds), np.zeros(1))
        return graph.add("Cast", logged, to=_FLOAT)

    def _pad_to_last(self, graph: Graph, lists: str) -> str:
        """Return lists, which are as wide as the longest one of a request, padded to `last`."""
        rows = graph.add("Slice", graph.add("Shape", lists), np.array([0]), np.array([1]))
        shape = graph.add("Concat", rows, np.array([self.last]), axis=0)
        padding = graph.add("Expand", np.array([[NO_CODE]]), shape)
        return graph.add(
            "Slice", graph.add("Concat", lists, padding, axis=1), np.array([0]), np.array([self.last]), np.array([1])
        )

    def _seconds_ago(self, rows: pl.DataFrame, declared: DeclaredColumns) -> Matrix:
        times = rows[self.row_column(declared, NEWEST_TIMES)]
        lengths = times.list.len().fill_null(0).to_numpy()
        impression_times = np.repeat(rows[Columns.TIME].dt.epoch("us").to_numpy().astype(np.float64), lengths)
        event_times = times.explode(empty_as_null=False, keep_nulls=False).to_numpy().astype(np.float64)
        logged_seconds = np.zeros((rows.height, self.last), np.float32)
        logged_seconds[np.arange(self.last) < lengths[:, None]] = np.log(
            np.maximum((impression_times - event_times) / _MICROSECONDS, 0.0) + 1.0
        )
        return logged_seconds

    @property
    def _declared_event_columns(self) -> tuple[str, ...]:
        return tuple(name for name in self.event_columns if name != SECONDS_AGO)

    @property
    def _sent_columns(self) -> tuple[str, ...]:
        return tuple(name for name in (self.sent, self.sent_times) if name is not None)

    def _logged_columns(self, declared: DeclaredColumns) -> tuple[str, ...]:
        return tuple(name for name in self._declared_event_columns if declared.side_table_of(name) is None)

    def _is_category(self, name: str, declared: DeclaredColumns) -> bool:
        return name != SECONDS_AGO and declared.column(name).type not in ("integer", "number")

    def _vocabulary_column(self, output: int, declared: DeclaredColumns) -> str | None:
        """Return the column by whose vocabulary an output's values get ids; None for a vector."""
        column = self.event_columns[output - 1] if output else self.of
        return column if not output or self._is_category(column, declared) else None

    def _id_column(self, output: int, declared: DeclaredColumns) -> str:
        """Return the column by whose vocabulary an output of ids gets them."""
        column = self._vocabulary_column(output, declared)
        assert column is not None, f"{self.title}: output {output} is a vector"
        return column

    def _view_feature(self, output: int, declared: DeclaredColumns) -> str:
        if not output:
            return NEWEST_VALUES
        name = self.event_columns[output - 1]
        return f"newest_{declared.log_column(name)}" if declared.side_table_of(name) is None else f"item_{name}"

    def _view(self, declared: DeclaredColumns) -> KeyedView:
        log_column = declared.log_column
        numbers = tuple(map(log_column, self._logged_columns(declared)))
        newest = NewestEvents(log_column(self.of), self.last, numbers, self.counts == "positives")
        return KeyedView(declared.key((self.key,)), newest=newest)

    def row_column(self, declared: DeclaredColumns, name: str) -> str:
        """Return the name under which looked-up rows hold a list or a vector of the events."""
        joined_list = self.joined_list(declared)
        return view_column(self._view(declared), name) if joined_list is None else joined_list.row_column(name)


def _side_table_of(name: str, data: Data) -> SideTable | None:
    """Return the side table of a column that is not the log's."""
    return None if name in {column.name for column in data.columns} else owner_of(name, data)


_FLOAT: Final = 1
"""ONNX data types of FP32 and FP64."""
_DOUBLE: Final = 11
