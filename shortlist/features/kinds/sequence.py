"""The last items of a key, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

import numpy as np
import polars as pl
from pydantic import BeforeValidator, ConfigDict, Field

from shortlist.contracts import Columns
from shortlist.features.columns import DeclaredColumns
from shortlist.features.hashing import NO_CODE
from shortlist.features.keyed import NEWEST_TIMES, NEWEST_VALUES, KeyedView, Newest
from shortlist.features.kinds.base import DeclaredIds, FeatureKind, FeatureName, Fitted, Form, view_column
from shortlist.features.kinds.graph import Graph
from shortlist.features.kinds.vocabulary import encoded
from shortlist.features.lists import map_values
from shortlist.features.open_events import OpenList
from shortlist.features.open_lists import live_list
from shortlist.features.vectors import Matrix, as_series, matrix
from shortlist.features.vocabulary import VocabularyLimits
from shortlist.spec.base import Names
from shortlist.spec.data import Data, RowClock
from shortlist.spec.features import declared_column
from shortlist.system.query_engine import Engine

SECONDS_AGO: Final = "seconds_ago"
_MICROSECONDS: Final = 1_000_000.0


def _one(key: object) -> object:
    return key[0] if isinstance(key, list | tuple) and len(key) == 1 else key


class Sequence(FeatureKind):
    """The values of a column at a key's last events, as a list of ids: the newest event first.

    Numbers beside it are vectors, `last` wide: number k belongs to id k, and 0 stands where there is no event. A value
    that is in no vocabulary keeps its place with the id 0.
    """

    kind: Literal["sequence"]
    """Last events of a key, in order; a log with a clock."""
    of: str
    """Column of the log whose values are listed, usually the item."""
    key: Annotated[str, BeforeValidator(_one)]
    """Column of the log whose events they are: the user, or a session."""
    last: int = Field(default=50, ge=1, le=1_000)
    """Most events; older ones are left out, however long a session is."""
    beside: Names = Field(
        default=(),
        alias="with",
        description="Numbers of every event, each a vector named `<name>_<number>`: `seconds_ago`, which is"
        " log(1 + seconds) from the event to this impression, or numeric columns of the log, outcomes allowed.",
    )
    counts: Literal["rows", "positives"] = "rows"
    """Events: impressions, or those of them with a positive label."""
    live: bool = False
    """Whether events of the open tiles are listed too, as servers keep them: the newest is seconds old. Needs
    `features.streaming`; numbers beside it are `seconds_ago` at most."""
    name: FeatureName
    """Name of the feature."""
    min_rows: int = Field(default=1, ge=1)
    """Training rows a value needs to get an id of its own; as in a vocabulary of the same column."""
    max_size: int = Field(default=10_000_000, ge=2)
    """Most ids, the unknown one among them; as in a vocabulary of the same column."""

    model_config = ConfigDict(serialize_by_alias=True)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the list and of the numbers beside it."""
        return (self.name, *(f"{self.name}_{number}" for number in self.beside))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The key: of the impression itself nothing else is read."""
        return (self.key,)

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
        """The key, and what is listed."""
        return (self.key, self.of, *self._columns)

    def check(self, data: Data) -> None:
        """Check also that events have a time, and that values and numbers are the log's."""
        super().check(data)
        if isinstance(data.clock, RowClock):
            raise ValueError(
                f"{self.title}: rows of this log have no times of their own, so nothing says which events came before;"
                " declare data.clock: {kind: column}"
            )
        wanted = {self.key: ("integer", "hex", "string"), self.of: ("integer", "hex", "string")}
        for name, types in (wanted | dict.fromkeys(self._columns, ("integer", "number"))).items():
            kind = declared_column(name, data, self.title).type
            if name not in {column.name for column in data.columns}:
                raise ValueError(f"{self.title}: '{name}' is a column of a side table; events have columns of the log")
            if kind not in types:
                raise ValueError(f"{self.title}: '{name}' is of type {kind}; wanted {' or '.join(types)}")
        if self.live:
            self._check_live(data)

    def _check_live(self, data: Data) -> None:
        if self._columns:
            raise ValueError(
                f"{self.title}: servers keep no '{self._columns[0]}' of events as they arrive; leave it out of `with`,"
                " or declare a second sequence without live"
            )
        if self.counts == "positives" and data.outcome_delay is None:
            raise ValueError(
                f"{self.title}: nothing says when an outcome is known; declare data.outcome_delay, so that training"
                " lists no positive event sooner than a server can"
            )
        late = [name for name in (self.key, self.of) if data.by_name[name].known == "after"]
        if late:
            raise ValueError(
                f"{self.title}: requests do not send '{late[0]}' (known: after), so that servers cannot list it; leave"
                " live out"
            )

    def forms(self, declared: DeclaredColumns) -> list[Form]:
        """Return a list of ids, and vectors."""
        numbers: list[Form] = ["vector" for _ in self.beside]
        return ["ids", *numbers]

    def views(self, declared: DeclaredColumns) -> Iterator[KeyedView]:
        """Return the newest events of the key."""
        yield self._view(declared)

    def open_list(self, declared: DeclaredColumns) -> OpenList | None:
        """Return what is listed of the open tiles."""
        view, in_log = self._view(declared), declared.in_log
        wanted = OpenList(view.name, in_log(self.key), in_log(self.of), self.last, self.counts == "positives")
        return wanted if self.live else None

    def vocabularies(self) -> Iterator[VocabularyLimits]:
        """Return the listed column."""
        yield VocabularyLimits(self.of, self.min_rows, self.max_size)

    def shape(self, output: int, fitted: Fitted) -> tuple[int | None, int | None]:
        """Return the size of the vocabulary, or the number of events."""
        return (None, self.last) if output else (fitted.vocabularies[self.of].size, None)

    def declared_ids(self, output: int, declared: DeclaredColumns) -> DeclaredIds | None:
        """Return as many ids as there are values, `max_size` at most."""
        return None if output else DeclaredIds(self.max_size, self.of, self.last)

    def events(self, output: int) -> int | None:
        """Return the most events: those of the list, and of the numbers beside it."""
        return self.last

    def compute(self, rows: pl.DataFrame, fitted: Fitted, engine: Engine) -> Iterator[pl.Series]:
        """Give the ids and the numbers."""
        values = rows[self._place(fitted.declared, NEWEST_VALUES)]
        yield map_values(values, fitted.vocabularies[self.of].ids).alias(self.name)
        for number, output in zip(self.beside, self.outputs[1:], strict=True):
            if number == SECONDS_AGO:
                yield as_series(output, self._seconds_ago(rows, fitted.declared))
            else:
                yield as_series(output, matrix(rows[self._place(fitted.declared, f"newest_{number}")], self.last))

    def list_nodes(self, graph: Graph, fitted: Fitted, output: int) -> tuple[str, str]:
        """Compile the ids."""
        codes = graph.listed(self._place(fitted.declared, NEWEST_VALUES), self.last)
        there = graph.add("Not", graph.add("Equal", codes, np.array([NO_CODE])))
        return encoded(graph, codes, self.of, fitted), there

    def vector_nodes(self, graph: Graph, fitted: Fitted, output: int) -> str:
        """Compile the numbers."""
        number = self.beside[output - 1]
        if number != SECONDS_AGO:
            return graph.vector(self._place(fitted.declared, f"newest_{number}"), self.last)
        times = graph.listed(self._place(fitted.declared, NEWEST_TIMES), self.last)
        wide = self._widened(graph, times)
        there = graph.add("Not", graph.add("Equal", wide, np.array([NO_CODE])))
        now = graph.turned(graph.numbers([Columns.TIME]))
        elapsed = graph.add("Sub", now, graph.add("Cast", wide, to=_DOUBLE))
        seconds = graph.at_least(graph.add("Div", elapsed, np.array([_MICROSECONDS])), np.zeros(1))
        logged = graph.add("Where", there, graph.log1p(seconds), np.zeros(1))
        return graph.add("Cast", logged, to=_FLOAT)

    def _widened(self, graph: Graph, lists: str) -> str:
        """Return lists, as wide as the longest of a request, padded to `last`."""
        rows = graph.add("Slice", graph.add("Shape", lists), np.array([0]), np.array([1]))
        shape = graph.add("Concat", rows, np.array([self.last]), axis=0)
        none = graph.add("Expand", np.array([[NO_CODE]]), shape)
        return graph.add(
            "Slice", graph.add("Concat", lists, none, axis=1), np.array([0]), np.array([self.last]), np.array([1])
        )

    def _seconds_ago(self, rows: pl.DataFrame, declared: DeclaredColumns) -> Matrix:
        times = rows[self._place(declared, NEWEST_TIMES)]
        lengths = times.list.len().fill_null(0).to_numpy()
        now = np.repeat(rows[Columns.TIME].dt.epoch("us").to_numpy().astype(np.float64), lengths)
        then = times.explode(empty_as_null=False, keep_nulls=False).to_numpy().astype(np.float64)
        found = np.zeros((rows.height, self.last), np.float32)
        found[np.arange(self.last) < lengths[:, None]] = np.log(np.maximum((now - then) / _MICROSECONDS, 0.0) + 1.0)
        return found

    @property
    def _columns(self) -> tuple[str, ...]:
        return tuple(name for name in self.beside if name != SECONDS_AGO)

    def _view(self, declared: DeclaredColumns) -> KeyedView:
        in_log = declared.in_log
        newest = Newest(in_log(self.of), self.last, tuple(map(in_log, self._columns)), self.counts == "positives")
        return KeyedView(declared.key((self.key,)), newest=newest)

    def _place(self, declared: DeclaredColumns, name: str) -> str:
        wanted = self.open_list(declared)
        return view_column(self._view(declared), name) if wanted is None else live_list(wanted, name)


_FLOAT: Final = 1
"""FP32 and FP64, as ONNX numbers them."""
_DOUBLE: Final = 11
