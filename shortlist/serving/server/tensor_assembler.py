"""From the columns of a request to the tensors of a model: look up, as the training table does, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any, Final, cast
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.contracts import Columns
from shortlist.features.joined_lists import ItemColumn, JoinedList
from shortlist.features.keyed import NEWEST_TIMES, NEWEST_VALUES
from shortlist.features.plan import Plan
from shortlist.features.slates import SlateValue, slate_features
from shortlist.serving.export.signature import CODES, NO_CODE, NULL_IN_LIST, NUMBERS, Signature
from shortlist.serving.server.clock import clock_columns
from shortlist.serving.server.columns import Codes, Column, Numbers, Ragged, Tags, Vectors, as_numbers, mixed
from shortlist.serving.server.feature_requirements import FeatureRequirements, Step
from shortlist.serving.server.key_index import KeyIndex
from shortlist.serving.server.pooling import pooled
from shortlist.serving.server.request_errors import BadRequestError
from shortlist.serving.server.view_table import ViewTable

Tables = Mapping[str, ViewTable]
"""By name of the step."""
Tensors = dict[str, NDArray[np.generic]]

_CLOCK: Final = frozenset(clock_columns(np.zeros(1, np.int64), ZoneInfo("UTC")))


class TensorAssembler:
    """Looks up what a model needs and lays it out as its signature says.

    The views of a user, and those of an item, are one table each, so that each is looked up once (see `joined`).
    """

    def __init__(self, plan: Plan, signature: Signature) -> None:
        self._slates = tuple(
            value for value in plan.slates if any(place in signature.numbers for place, _ in value.gives)
        )
        self.needs = FeatureRequirements.of(plan, _with_compared(signature, self._slates))
        data = plan.declared.data
        self.user = self.needs.merged(self.needs.of_user, data.user) if data.user and self.needs.of_user else None
        self.item = self.needs.merged(self.needs.of_item, data.item) if data.item and self.needs.of_item else None
        joined = [step for step in (self.user, self.item) if step is not None]
        self.steps: tuple[Step, ...] = (*joined, *self.needs.others)
        stored = {one.stored(f"newest_{name}"): one.most for one in self.needs.joined for name in one.numbers}
        self.widths = {each.place: each.width for each in signature.vectors} | stored
        self.signature = signature
        """Of the model."""
        self._zone = ZoneInfo(plan.declared.timezone)
        opened = (one.open_place(feature) for one in self.needs.joined if one.opened for feature in one.opened.features)
        self.open_lists = tuple(place for place in opened if place is not None)
        """Places of the lists of the open tiles."""

    def tensors(
        self, columns: Mapping[str, Column], tables: Tables, rows: int, slates: NDArray[np.int64] | None = None,
        most_tags: int | None = None,
    ) -> Tensors:  # fmt: skip
        """Return the inputs of the model.

        Args:
            columns: Those of `needs.columns`, and `event_time` in microseconds; each of one row or of all. Likewise
                those of `needs.counted`, which are 0 where nobody counts, and the open lists of `needs.joined`.
            tables: A table for every one of `steps`.
            rows: Number of rows.
            slates: Number of every row's slate; None: all rows are one, as in a request.
            most_tags: Values of all rows that a list of the model may have, and combinations of tags by which one
                feature may look rows up; None: any number.

        Raises:
            BadRequestError: The rows have more.
        """
        empty: dict[str, Column] = dict.fromkeys(self.needs.counted, _NONE)
        empty |= dict.fromkeys(self.open_lists, _EMPTY)
        found = _Found({**empty, **columns}, self._zone)
        for step in self.steps:
            found.look_up(step, tables[step.name], most_tags)
        for wanted in self.needs.joined:
            found.join_lists(wanted)
            for item in wanted.items:
                step = next(step for step in self.steps if item.place in step.places)
                found.add_of_items(wanted, item, step, tables[step.name])
        if self._slates:
            found.compare(self._slates, rows, slates)
        return self._laid_out(found, rows, most_tags)

    def one_row(self) -> Tensors:
        """Return inputs of the model that say nothing: numbers are 0, every code and list is null."""
        signature, tensors = self.signature, cast(Tensors, {})
        if signature.numbers:
            tensors[NUMBERS] = np.zeros((1, len(signature.numbers)))
        if signature.codes:
            tensors[CODES] = np.full((1, len(signature.codes)), NO_CODE, np.int64)
        for each in signature.lists:
            tensors[each.tensor] = np.full((1, each.longest or 1), NO_CODE, np.int64)
        for vector in signature.vectors:
            tensors[vector.tensor] = np.zeros((1, vector.width), np.float32)
        return tensors

    def joined(self, steps: Sequence[Step], into: Step, tables: Tables) -> ViewTable:
        """Return the tables of several steps as one, keyed by one column, with every key that any of them knows."""
        (key,) = into.keys
        indices = [tables[step.name].index for step in steps if step.keys == (key,)]
        keys = reduce(np.union1d, [index.codes for index in indices if index is not None])
        found = _Found({key: np.append(keys, NO_CODE)}, self._zone)
        for step in steps:
            found.look_up(step, tables[step.name])
        return found.table(KeyIndex(keys), into)

    def _laid_out(self, found: _Found, rows: int, most_tags: int | None) -> Tensors:
        tensors: Tensors = {}
        if self.signature.numbers:
            tensors[NUMBERS] = found.numbers(self.signature.numbers, rows)
        if self.signature.codes:
            tensors[CODES] = found.codes(self.signature.codes, rows)
        for each in self.signature.lists:
            listed = found.list(each.place)
            if most_tags is not None and (total := rows * listed.width(each.longest)) > most_tags:
                raise BadRequestError(
                    f"inputs: the lists of {each.place} take {total} values in {rows} rows; wanted at most {most_tags}"
                    " (serving.limits.max_tag_values)"
                )
            matrix = listed.padded(each.longest)
            tensors[each.tensor] = np.ascontiguousarray(np.broadcast_to(matrix, (rows, matrix.shape[1])))
        for vector in self.signature.vectors:
            tensors[vector.tensor] = np.ascontiguousarray(
                np.broadcast_to(found.vectors(vector.place), (rows, vector.width))
            )
        return tensors


class _Found:
    """Everything that is known of some rows, by place."""

    def __init__(self, columns: Mapping[str, Column], zone: ZoneInfo) -> None:
        self._columns = dict(columns)
        self._zone = zone
        self._clock: dict[str, Numbers] | None = None
        self._blocks: list[tuple[tuple[str, ...], Numbers]] = []
        self._code_blocks: list[tuple[tuple[str, ...], Codes]] = []
        self._lists: dict[str, Ragged] = {}
        self._tags: dict[str, Tags] = {}
        self._vectors: dict[str, Vectors] = {}

    def look_up(self, step: Step, table: ViewTable, most_tags: int | None = None) -> None:
        """Add what a step gives."""
        if step.pools:
            keys = [
                self.tags(place) if tags else self.code(place) for place, tags in zip(step.keys, step.tags, strict=True)
            ]
            self._blocks.append((step.numbers, pooled(step, table, keys, most_tags)))
            return
        rows = table.find(mixed([self.code(place) for place in step.keys]) if step.keys else _ONE)
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

    def join_lists(self, wanted: JoinedList) -> None:
        """Add the lists of all events: what was sent, else those of the open tiles, then those that were looked up."""
        sent = cast(Ragged, self._columns[wanted.sent]).head(wanted.most) if wanted.sent else Ragged.empty(1)
        opened = self._opened(wanted, NEWEST_VALUES)
        stored = opened.followed_by(self.list(wanted.stored(NEWEST_VALUES)), wanted.most)
        self._lists[wanted.place(NEWEST_VALUES)] = stored.replaced_by(sent, sent.lengths > 0)
        times = self._opened(wanted, NEWEST_TIMES).followed_by(self.list(wanted.stored(NEWEST_TIMES)), wanted.most)
        own = Ragged.empty(1)
        if wanted.sent_times:
            whole, their = (cast(Ragged, self._columns[name]) for name in wanted.sent_columns)
            own = Ragged.empty(1).replaced_by(their.head(wanted.most), whole.lengths == their.lengths)
        self._lists[wanted.place(NEWEST_TIMES)] = times.replaced_by(own, sent.lengths > 0)
        for feature in (f"newest_{name}" for name in wanted.numbers):
            numbers = _before(opened, self._opened(wanted, feature), self.vectors(wanted.stored(feature)))
            self._vectors[wanted.place(feature)] = np.where((sent.lengths > 0)[:, None], np.float32(0), numbers)

    def _opened(self, wanted: JoinedList, feature: str) -> Ragged:
        place = wanted.open_place(feature)
        return Ragged.empty(1) if place is None else self.list(place)

    def add_of_items(self, wanted: JoinedList, item: ItemColumn, step: Step, table: ViewTable) -> None:
        """Add what the side table says of every listed item."""
        listed = self._lists[wanted.place(NEWEST_VALUES)].packed()
        rows, place = table.find(listed.values), wanted.place(item.feature)
        if item.is_number:
            numbers = table.numbers[rows, step.numbers.index(item.place)].astype(np.float32)
            finite = np.where(np.isfinite(numbers), numbers, np.float32(0))
            self._vectors[place] = _wide(listed, finite, wanted.most)
            return
        if item.place in step.codes:
            codes = table.codes[rows, step.codes.index(item.place)]
        else:
            codes = table.lists[item.place].take(rows).head(1).padded(1)[:, 0]
        codes = np.where(codes == NO_CODE, NULL_IN_LIST, codes)  # the event keeps its place
        self._lists[place] = Ragged(codes, listed.starts, listed.lengths)

    def compare(self, values: Sequence[SlateValue], rows: int, slates: NDArray[np.int64] | None) -> None:
        """Add where every row stands among those of its slate, by the function that the training table calls."""
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
            self._tags[place] = Tags.of(cast(Ragged, self._columns[place]))
        return self._tags[place]

    def vectors(self, place: str) -> Vectors:
        """Return a column of vectors."""
        return self._vectors[place] if place in self._vectors else cast(Vectors, self._columns[place])

    def numbers(self, wanted: tuple[str, ...], rows: int) -> Numbers:
        """Return columns of numbers, shape (rows, wanted)."""
        return cast(Numbers, _laid(wanted, self._blocks, self._number, np.empty((rows, len(wanted)))))

    def codes(self, wanted: tuple[str, ...], rows: int) -> Codes:
        """Return columns of codes, shape (rows, wanted)."""
        matrix = np.empty((rows, len(wanted)), np.int64)
        return cast(Codes, _laid(wanted, self._code_blocks, self._columns.__getitem__, matrix))

    def table(self, keys: KeyIndex, step: Step) -> ViewTable:
        """Return everything as the table of a step; the last row is the unknown key's."""
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


def _with_compared(signature: Signature, values: Sequence[SlateValue]) -> Signature:
    """Return a signature that reads what is compared in place of what is computed from it."""
    told_places = {place for value in values for place, _ in value.gives}
    kept = (place for place in signature.numbers if place not in told_places)
    read = (place for value in values for place in value.reads)
    return signature.model_copy(update={"numbers": tuple(dict.fromkeys((*kept, *read)))})


def _before(opened: Ragged, numbers: Ragged, stored: Vectors) -> Vectors:
    """Return numbers of the events of the open tiles, 0 where nothing is known of them, then those of the others."""
    most = stored.shape[1]
    first = _wide(opened, numbers.values, most) if len(numbers.values) else np.zeros((1, most), np.float32)
    place = np.arange(most) - opened.lengths[:, None]
    place, stored = np.broadcast_arrays(place, stored) if len(place) != len(stored) else (place, stored)
    moved = np.take_along_axis(stored, np.maximum(place, 0), axis=1)
    return cast(Vectors, np.where(place < 0, first, moved))


def _wide(lists: Ragged, numbers: NDArray[Any], most: int) -> Vectors:
    """Return numbers of lists' values, 0 behind the last one."""
    wide = np.zeros((len(lists), most), np.float32)
    within = np.arange(most) < lists.lengths[:, None]
    wide[within] = numbers[(lists.starts[:, None] + np.arange(most))[within]]
    return wide


_ONE: Final = np.zeros(1, np.int64)
_NONE: Final = np.zeros(1)
_EMPTY: Final = Ragged.empty(1)


def _laid(
    wanted: tuple[str, ...], blocks: Sequence[tuple[tuple[str, ...], Any]], column: Callable[[str], Any], matrix: Any
) -> NDArray[Any]:
    """Fill a matrix with the columns that are wanted: of the blocks, or of the request.

    What is the same in all rows is written first, all at once.
    """
    order, own = _order(wanted, tuple(places for places, _ in blocks))
    parts = [(to, block if of is None else block[:, of]) for (of, to), (_, block) in zip(order, blocks, strict=True)]
    parts += [(number, column(place)) for place, number in own]
    first = np.empty(len(wanted), matrix.dtype)
    for to, values in parts:
        if len(values) == 1:
            first[to] = values[0]
    matrix[:] = first
    for to, values in parts:
        if len(values) != 1:
            matrix[:, to] = values
    return cast(NDArray[Any], matrix)


@lru_cache(maxsize=256)
def _order(wanted: tuple[str, ...], blocks: tuple[tuple[str, ...], ...]) -> tuple[list[Any], list[tuple[str, int]]]:
    """Return which columns of each block go where (None: all of them), and which ones are in no block."""
    there = {place: number for number, place in enumerate(wanted)}
    order = []
    for places in blocks:
        of = [number for number, place in enumerate(places) if place in there]
        to = np.array([there[places[number]] for number in of], np.intp)
        order.append((None if len(of) == len(places) else np.array(of, np.intp), to))
    looked_up = {place for places in blocks for place in places}
    return order, [(place, number) for place, number in there.items() if place not in looked_up]
