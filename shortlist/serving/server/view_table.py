"""The values of a view in memory, found by the code of their key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, cast

import numpy as np
import polars as pl

from shortlist.contracts import DataError
from shortlist.features.vectors import matrix
from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.server.columns import Codes, Numbers, Ragged, Rows, Tags, Vectors, mixed, to_codes
from shortlist.serving.server.feature_requirements import Step
from shortlist.serving.server.key_index import KeyIndex


@dataclass(frozen=True)
class ViewTable:
    """Columns of a step, by row; the last row holds what is said of an unknown key, and -1 is its number."""

    index: KeyIndex | None
    """Codes of the keys, in the order of the rows; None: one row, of everything."""
    numbers: Numbers
    """Shape (rows, columns), in the order of the step's; the same for codes."""
    codes: Codes
    lists: Mapping[str, Ragged]
    tag_lists: Mapping[str, Tags]
    vectors: Mapping[str, Vectors]

    @classmethod
    def of(cls, frame: pl.DataFrame, step: Step, widths: Mapping[str, int]) -> Self:
        """Return a view's rows.

        Args:
            frame: Keys and features, one row per key, as `ViewIndex.snapshot` gives them.
            step: What is needed of it.
            widths: Of the vectors, by place.

        Raises:
            DataError: Two rows have the same key, or a vector has another width.
        """
        keys = frame.columns[: len(step.keys)] if step.keys else []
        index = _index(mixed([to_codes(frame[name]) for name in keys]), step) if keys else None
        table = cls(
            index=index,
            numbers=_block([_numbers(frame[_feature(place)]) for place in step.numbers], frame.height),
            codes=_code_block([to_codes(frame[_feature(place)]) for place in step.codes], frame.height),
            lists={place: _ragged(frame[_feature(place)]) for place in step.lists},
            tag_lists={place: Tags.of(_ragged(frame[_feature(place)])) for place in step.tag_lists},
            vectors={place: _vectors(frame[_feature(place)], widths[place]) for place in step.vectors},
        )
        return table._without_null_sums(step)

    @classmethod
    def unknown(cls, step: Step, widths: Mapping[str, int]) -> Self:
        """Return a table without keys."""
        table = cls(
            index=KeyIndex.empty(),
            numbers=np.full((1, len(step.numbers)), np.nan),
            codes=np.full((1, len(step.codes)), NO_CODE, np.int64),
            lists={place: Ragged.empty(1) for place in step.lists},
            tag_lists={place: Tags.empty(1) for place in step.tag_lists},
            vectors={place: np.zeros((1, widths[place]), np.float32) for place in step.vectors},
        )
        return table._without_null_sums(step)

    def _without_null_sums(self, step: Step) -> Self:
        """Fill the sums that rows with several tags add up: a sum passes over nulls, an unknown tag adds nothing."""
        if step.pools:
            np.nan_to_num(self.numbers[:, : len(step.numbers) - step.lasts], copy=False)
        return self

    def find(self, codes: Codes) -> Rows:
        """Return the row of every key; -1 for unknown ones."""
        if self.index is None:
            return np.zeros(1, np.intp) if len(self.numbers) > 1 else np.full(1, -1, np.intp)
        return self.index.rows(codes)


def _index(codes: Codes, step: Step) -> KeyIndex:
    index = KeyIndex(codes)
    if not index.is_unique:
        raise DataError(f"view '{step.name}': two rows have the same key; publish the features again")
    return index


def _feature(place: str) -> str:
    return place.partition(":")[2]


def _numbers(values: pl.Series) -> Numbers:
    return cast(Numbers, values.cast(pl.Float64).fill_null(np.nan).to_numpy())


def _block(columns: list[Numbers], rows: int) -> Numbers:
    block = np.full((rows + 1, len(columns)), np.nan)
    for number, column in enumerate(columns):
        block[:-1, number] = column
    return block


def _code_block(columns: list[Codes], rows: int) -> Codes:
    block = np.full((rows + 1, len(columns)), NO_CODE, np.int64)
    for number, column in enumerate(columns):
        block[:-1, number] = column
    return block


def _ragged(lists: pl.Series) -> Ragged:
    known = Ragged.of(lists)
    return Ragged(known.values, np.append(known.starts, 0), np.append(known.lengths, 0))


def _vectors(values: pl.Series, width: int) -> Vectors:
    return np.vstack([matrix(values, width), np.zeros((1, width), np.float32)])
