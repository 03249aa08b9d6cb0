"""Assembles a model's tensors from a request's columns: the look-ups of the training table, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any, Final, cast
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.contracts import Columns
from shortlist.features.counts.keyed import NEWEST_TIMES, NEWEST_VALUES
from shortlist.features.declared.joined_lists import ItemColumn, JoinedList
from shortlist.features.declared.plan import Plan
from shortlist.features.declared.slates import SlateValue, slate_features
from shortlist.serving.export.signature import CODES, NO_CODE, NULL_IN_LIST, NUMBERS, Signature
from shortlist.serving.server.features.clock import clock_columns
from shortlist.serving.server.features.columns import (
    Codes,
    Column,
    Numbers,
    Ragged,
    Tags,
    Vectors,
    as_numbers,
    combine_keys,
)
from shortlist.serving.server.features.feature_requirements import FeatureRequirements, LookupStep
from shortlist.serving.server.features.key_index import KeyIndex
from shortlist.serving.server.features.pooling import pool_rows
from shortlist.serving.server.features.view_table import ViewTable
from shortlist.serving.server.requests.request_errors import BadRequestError

Tables = Mapping[str, ViewTable]
"""Look-up tables by step name."""
Tensors = dict[str, NDArray[np.generic]]

_CLOCK: Final = frozenset(clock_columns(np.zeros(1, np.int64), ZoneInfo("UTC")))


class TensorAssembler:
    """Looks up a model's features and fills the tensors of its signature.

    The views of users are joined into one table, and so are those of items, so that each is looked up once.
    """

    def __init__(self, plan: Plan, signature: Signature) -> None:
        self._slates = tuple(
            value for value in plan.slates if any(place in signature.numbers for place, _ in value.statistics)
        )
        self._slates_have_moments = plan.slates_have_moments
        self.requirements = FeatureRequirements.from_plan(plan, _with_slate_inputs(signature, self._slates))
        data = plan.declared.data
        self.user = (
            self.requirements.merge_steps(self.requirements.user_steps, data.user)
            if data.user and self.requirements.user_steps
            else None
        )
        self.item = (
            self.requirements.merge_steps(self.requirements.item_steps, data.item)
            if data.item and self.requirements.item_steps
            else None
        )
        joined = [step for step in (self.user, self.item) if step is not None]
        self.steps: tuple[LookupStep, ...] = (*joined, *self.requirements.other_steps)
        number_widths = {
            joined_list.stored_column(f"newest_{name}"): joined_list.max_events
            for joined_list in self.requirements.joined_lists
            for name in joined_list.numbers
        }
        self.widths = {vector.place: vector.width for vector in signature.vectors} | number_widths
        self.signature = signature
        """Signature of the model."""
        self._zone = ZoneInfo(plan.declared.timezone)
        open_places = (
            joined_list.open_column(feature)
            for joined_list in self.requirements.joined_lists
            if joined_list.open_list
            for feature in joined_list.open_list.features
        )
        self.open_lists = tuple(place for place in open_places if place is not None)
        """Columns of the lists of the open tiles."""

    def tensors(
        self, columns: Mapping[str, Column], tables: Tables, rows: int, slates: NDArray[np.int64] | None = None,
        max_tags: int | None = None,
    ) -> Tensors:  # fmt: skip
        """Return the inputs of the model.

        Args:
            columns: Columns of `requirements.columns`, and `event_time` in microseconds; each of one row or of all.
                Optional: the live counts of `requirements.counted_places`, 0 when missing, and `open_lists`.
            tables: Table of each of `steps`.
            rows: Number of rows.
            slates: Slate number of each row; None when all rows are one slate, as in a request.
            max_tags: Limit of a list's values in all rows, and of the tag combinations that one look-up may need;
                None for no limit.

        Raises:
            BadRequestError: The rows exceed `max_tags`.
        """
        if self._slates_have_moments and slates is None:
            columns = {**columns, Columns.TIME: cast(Codes, columns[Columns.TIME]).min(keepdims=True)}
        empty: dict[str, Column] = dict.fromkeys(self.requirements.counted_places, _ZERO)
        empty |= dict.fromkeys(self.open_lists, _EMPTY_LIST)
        row_features = _RowFeatures({**empty, **columns}, self._zone)
        for step in self.steps:
            row_features.look_up(step, tables[step.name], max_tags)
        for joined_list in self.requirements.joined_lists:
            row_features.join_lists(joined_list)
            for item in joined_list.items:
                step = next(step for step in self.steps if item.place in step.places)
                row_features.add_item_columns(joined_list, item, step, tables[step.name])
        if self._slates:
            row_features.add_slate_values(self._slates, rows, slates)
        return self._fill_tensors(row_features, rows, max_tags)

    def one_row(self) -> Tensors:
        """Return the tensors of one row of nulls: numbers are 0, codes and lists are null."""
        signature, tensors = self.signature, cast(Tensors, {})
        if signature.numbers:
            tensors[NUMBERS] = np.zeros((1, len(signature.numbers)))
        if signature.codes:
            tensors[CODES] = np.full((1, len(signature.codes)), NO_CODE, np.int64)
        for list_input in signature.lists:
            tensors[list_input.tensor] = np.full((1, list_input.longest or 1), NO_CODE, np.int64)
        for vector in signature.vectors:
            tensors[vector.tensor] = np.zeros((1, vector.width), np.float32)
        return tensors

    def join_views(self, steps: Sequence[LookupStep], into: LookupStep, tables: Tables) -> ViewTable:
        """Return the tables of several steps joined into one, keyed by one column, with the keys of all."""
        (key,) = into.keys
        indices = [tables[step.name].index for step in steps if step.keys == (key,)]
        keys = reduce(np.union1d, [index.codes for index in indices if index is not None])
        row_features = _RowFeatures({key: np.append(keys, NO_CODE)}, self._zone)
        for step in steps:
            row_features.look_up(step, tables[step.name])
        return row_features.table(KeyIndex(keys), into)

    def _fill_tensors(self, row_features: _RowFeatures, rows: int, max_tags: int | None) -> Tensors:
        tensors: Tensors = {}
        if self.signature.numbers:
            tensors[NUMBERS] = row_features.numbers(self.signature.numbers, rows)
        if self.signature.codes:
            tensors[CODES] = row_features.codes(self.signature.codes, rows)
        for list_input in self.signature.lists:
            ragged = row_features.list(list_input.place)
            if max_tags is not None and (total := rows * ragged.width(list_input.longest)) > max_tags:
                raise BadRequestError(
                    f"inputs: the lists of {list_input.place} take {total} values in {rows} rows;"
                    f" wanted at most {max_tags} (serving.limits.max_tag_values)"
                )
            matrix = ragged.padded(list_input.longest)
            tensors[list_input.tensor] = np.ascontiguousarray(np.broadcast_to(matrix, (rows, matrix.shape[1])))
        for vector in self.signature.vectors:
            tensors[vector.tensor] = np.ascontiguousarray(
                np.broadcast_to(row_features.vectors(vector.place), (rows, vector.width))
            )
        return tensors


class _RowFeatures:
    """Columns and looked-up features of some rows, by column."""

    def __init__(self, columns: Mapping[str, Column], zone: ZoneInfo) -> None:
        self._columns = dict(columns)
        self._zone = zone
        self._clock: dict[str, Numbers] | None = None
        self._blocks: list[tuple[tuple[str, ...], Numbers]] = []
        self._code_blocks: list[tuple[tuple[str, ...], Codes]] = []
        self._lists: dict[str, Ragged] = {}
        self._tags: dict[str, Tags] = {}
        self._vectors: dict[str, Vectors] = {}

    def look_up(self, step: LookupStep, table: ViewTable, max_tags: int | None = None) -> None:
        """Add the features of a look-up step."""
        if step.pools:
            keys = [
                self.tags(place) if tags else self.code(place) for place, tags in zip(step.keys, step.tags, strict=True)
            ]
            self._blocks.append((step.numbers, pool_rows(step, table, keys, max_tags)))
            return
        rows = table.find(combine_keys([self.code(place) for place in step.keys]) if step.keys else _CONSTANT_KEY)
        if step.numbers:
            self._blocks.append((step.numbers, table.numbers.take(rows, axis=0)))
        if step.codes:
            self._code_blocks.append((step.codes, table.codes.take(rows, axis=0)))
        for place in step.lists:
            self._lists[place] = table.lists[place].take(rows)
        for place in step.tag_lists:
            self._tags[place] = table.tag_lists[place].take(rows)
        for place in step.vectors:
            self._vectors[place] = table.vectors[place].take(rows, axis=0)

    def join_lists(self, joined_list: JoinedList) -> None:
        """Add the joined lists of events: the sent ones, else those of open tiles followed by the looked-up ones."""
        sent = (
            cast(Ragged, self._columns[joined_list.sent]).head(joined_list.max_events)
            if joined_list.sent
            else Ragged.empty(1)
        )
        open_values = self._open_tile_list(joined_list, NEWEST_VALUES)
        stored = open_values.followed_by(self.list(joined_list.stored_column(NEWEST_VALUES)), joined_list.max_events)
        self._lists[joined_list.row_column(NEWEST_VALUES)] = stored.replaced_by(sent, sent.lengths > 0)
        times = self._open_tile_list(joined_list, NEWEST_TIMES).followed_by(
            self.list(joined_list.stored_column(NEWEST_TIMES)), joined_list.max_events
        )
        sent_times = Ragged.empty(1)
        if joined_list.sent_times:
            sent_values, times_of_sent = (cast(Ragged, self._columns[name]) for name in joined_list.sent_columns)
            sent_times = Ragged.empty(1).replaced_by(
                times_of_sent.head(joined_list.max_events), sent_values.lengths == times_of_sent.lengths
            )
        self._lists[joined_list.row_column(NEWEST_TIMES)] = times.replaced_by(sent_times, sent.lengths > 0)
        for feature in (f"newest_{name}" for name in joined_list.numbers):
            numbers = _prepend_numbers(
                open_values,
                self._open_tile_list(joined_list, feature),
                self.vectors(joined_list.stored_column(feature)),
            )
            self._vectors[joined_list.row_column(feature)] = np.where(
                (sent.lengths > 0)[:, None], np.float32(0), numbers
            )

    def _open_tile_list(self, joined_list: JoinedList, feature: str) -> Ragged:
        place = joined_list.open_column(feature)
        return Ragged.empty(1) if place is None else self.list(place)

    def add_item_columns(self, joined_list: JoinedList, item: ItemColumn, step: LookupStep, table: ViewTable) -> None:
        """Add a side table's column for every listed item."""
        item_ids = self._lists[joined_list.row_column(NEWEST_VALUES)].packed()
        rows, place = table.find(item_ids.values), joined_list.row_column(item.feature)
        if item.is_number:
            numbers = table.numbers[rows, step.numbers.index(item.place)].astype(np.float32)
            finite = np.where(np.isfinite(numbers), numbers, np.float32(0))
            self._vectors[place] = _pad_numbers(item_ids, finite, joined_list.max_events)
            return
        if item.place in step.codes:
            codes = table.codes[rows, step.codes.index(item.place)]
        else:
            codes = table.lists[item.place].take(rows).head(1).padded(1)[:, 0]
        codes = np.where(codes == NO_CODE, NULL_IN_LIST, codes)  # the event stays in the list
        self._lists[place] = Ragged(codes, item_ids.starts, item_ids.lengths)

    def add_slate_values(self, values: Sequence[SlateValue], rows: int, slates: NDArray[np.int64] | None) -> None:
        """Add the slate statistics of every row, with the function that the training table uses."""
        places = tuple(dict.fromkeys(place for value in values for place in value.reads))
        numbers = pl.DataFrame(self.numbers(places, rows), schema=list(places), orient="row").fill_nan(None)
        for place, column in slate_features(numbers, values, slates).items():
            self._columns[place] = column

    def code(self, place: str) -> Codes:
        """Return a column of codes."""
        for places, block in self._code_blocks:
            if place in places:
                return block[:, places.index(place)]
        return cast(Codes, self._columns[place])

    def list(self, place: str) -> Ragged:
        """Return a column of lists."""
        return self._lists[place] if place in self._lists else cast(Ragged, self._columns[place])

    def tags(self, place: str) -> Tags:
        """Return a column of distinct tags."""
        if place not in self._tags:
            self._tags[place] = Tags.from_ragged(cast(Ragged, self._columns[place]))
        return self._tags[place]

    def vectors(self, place: str) -> Vectors:
        """Return a column of vectors."""
        return self._vectors[place] if place in self._vectors else cast(Vectors, self._columns[place])

    def numbers(self, requested_places: tuple[str, ...], rows: int) -> Numbers:
        """Return columns of numbers, shape (rows, requested_places)."""
        return cast(
            Numbers, _fill_matrix(requested_places, self._blocks, self._number, np.empty((rows, len(requested_places))))
        )

    def codes(self, requested_places: tuple[str, ...], rows: int) -> Codes:
        """Return columns of codes, shape (rows, requested_places)."""
        matrix = np.empty((rows, len(requested_places)), np.int64)
        return cast(Codes, _fill_matrix(requested_places, self._code_blocks, self._columns.__getitem__, matrix))

    def table(self, keys: KeyIndex, step: LookupStep) -> ViewTable:
        """Return the rows as the table of a step; the last row is for unknown keys."""
        rows = len(cast(Codes, self._columns[step.keys[0]]))
        return ViewTable(
            index=keys,
            numbers=self.numbers(step.numbers, rows),
            codes=self.codes(step.codes, rows),
            lists={place: self.list(place) for place in step.lists},
            tag_lists={place: self.tags(place) for place in step.tag_lists},
            vectors={place: self.vectors(place) for place in step.vectors},
        )

    def _number(self, place: str) -> Numbers:
        if place not in _CLOCK:
            return as_numbers(cast(Numbers, self._columns[place]))
        if self._clock is None:
            self._clock = clock_columns(cast(Codes, self._columns[Columns.TIME]), self._zone)
        return self._clock[place]


def _with_slate_inputs(signature: Signature, values: Sequence[SlateValue]) -> Signature:
    """Return the signature with slate statistics replaced by the numbers they are computed from."""
    slate_places = {place for value in values for place, _ in value.statistics}
    row_places = (place for place in signature.numbers if place not in slate_places)
    compared_places = (place for value in values for place in value.reads)
    return signature.model_copy(update={"numbers": tuple(dict.fromkeys((*row_places, *compared_places)))})


def _prepend_numbers(open_values: Ragged, numbers: Ragged, stored: Vectors) -> Vectors:
    """Return the events' numbers: first of the open tiles, 0 where unknown, then of the stored events."""
    width = stored.shape[1]
    open_numbers = (
        _pad_numbers(open_values, numbers.values, width) if len(numbers.values) else np.zeros((1, width), np.float32)
    )
    stored_columns = np.arange(width) - open_values.lengths[:, None]
    stored_columns, stored = (
        np.broadcast_arrays(stored_columns, stored) if len(stored_columns) != len(stored) else (stored_columns, stored)
    )
    shifted = np.take_along_axis(stored, np.maximum(stored_columns, 0), axis=1)
    return cast(Vectors, np.where(stored_columns < 0, open_numbers, shifted))


def _pad_numbers(lists: Ragged, numbers: NDArray[Any], width: int) -> Vectors:
    """Return the numbers of lists as a matrix, padded with 0."""
    padded_rows = np.zeros((len(lists), width), np.float32)
    is_filled = np.arange(width) < lists.lengths[:, None]
    padded_rows[is_filled] = numbers[(lists.starts[:, None] + np.arange(width))[is_filled]]
    return padded_rows


_CONSTANT_KEY: Final = np.zeros(1, np.int64)
_ZERO: Final = np.zeros(1)
_EMPTY_LIST: Final = Ragged.empty(1)


def _fill_matrix(
    requested_places: tuple[str, ...],
    blocks: Sequence[tuple[tuple[str, ...], Any]],
    column: Callable[[str], Any],
    matrix: Any,
) -> NDArray[Any]:
    """Fill a matrix with the requested columns, from looked-up blocks or from the request.

    Values that are equal in all rows are written first, in one assignment.
    """
    block_columns, single_columns = _column_order(requested_places, tuple(places for places, _ in blocks))
    parts = [
        (targets, block if sources is None else block[:, sources])
        for (sources, targets), (_, block) in zip(block_columns, blocks, strict=True)
    ]
    parts += [(number, column(place)) for place, number in single_columns]
    first_row = np.empty(len(requested_places), matrix.dtype)
    for targets, values in parts:
        if len(values) == 1:
            first_row[targets] = values[0]
    matrix[:] = first_row
    for targets, values in parts:
        if len(values) != 1:
            matrix[:, targets] = values
    return cast(NDArray[Any], matrix)


@lru_cache(maxsize=256)
def _column_order(
    requested_places: tuple[str, ...], blocks: tuple[tuple[str, ...], ...]
) -> tuple[list[Any], list[tuple[str, int]]]:
    """Return per block its source (None: all) and target columns, and the columns that are in no block."""
    column_by_place = {place: number for number, place in enumerate(requested_places)}
    order = []
    for places in blocks:
        sources = [number for number, place in enumerate(places) if place in column_by_place]
        targets = np.array([column_by_place[places[number]] for number in sources], np.intp)
        order.append((None if len(sources) == len(places) else np.array(sources, np.intp), targets))
    looked_up = {place for places in blocks for place in places}
    return order, [(place, number) for place, number in column_by_place.items() if place not in looked_up]
