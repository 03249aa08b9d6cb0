"""The values of a view in memory, found by the codes of their keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, cast

import numpy as np
import polars as pl

from shortlist.contracts import DataError
from shortlist.features.values.vectors import matrix
from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.server.features.columns import (
    Codes,
    Numbers,
    Ragged,
    Rows,
    Tags,
    Vectors,
    combine_keys,
    to_codes,
)
from shortlist.serving.server.features.feature_requirements import LookupStep
from shortlist.serving.server.features.key_index import KeyIndex


@dataclass(frozen=True)
class ViewTable:
    """Columns of a look-up step; the last row, with number -1, holds the values of unknown keys."""

    index: KeyIndex | None
    """Index of the keys; None for a single row that matches every key."""
    numbers: Numbers
    """Numbers, shape (rows, columns), in the order of the step's columns; likewise the codes."""
    codes: Codes
    lists: Mapping[str, Ragged]
    tag_lists: Mapping[str, Tags]
    vectors: Mapping[str, Vectors]

    @classmethod
    def from_frame(cls, frame: pl.DataFrame, step: LookupStep, widths: Mapping[str, int]) -> Self:
        """Return the table of a view.

        Args:
            frame: Keys and features, one row per key, as `ViewIndex.snapshot` gives them.
            step: The look-up step.
            widths: Widths of the vectors, by column.

        Raises:
            DataError: Two rows have the same key, or a vector has another width.
        """
        keys = frame.columns[: len(step.keys)] if step.keys else []
        index = _index(combine_keys([to_codes(frame[name]) for name in keys]), step) if keys else None
        table = cls(
            index=index,
            numbers=_block([_numbers(frame[_feature(place)]) for place in step.numbers], frame.height),
            codes=_code_block([to_codes(frame[_feature(place)]) for place in step.codes], frame.height),
            lists={place: _ragged(frame[_feature(place)]) for place in step.lists},
            tag_lists={place: Tags.from_ragged(_ragged(frame[_feature(place)])) for place in step.tag_lists},
            vectors={place: _vectors(frame[_feature(place)], widths[place]) for place in step.vectors},
        )
        return table._without_null_sums(step)

    @classmethod
    def empty(cls, step: LookupStep, widths: Mapping[str, int]) -> Self:
        """Return a table without keys, which returns nulls for every key."""
        table = cls(
            index=KeyIndex.empty(),
            numbers=np.full((1, len(step.numbers)), np.nan),
            codes=np.full((1, len(step.codes)), NO_CODE, np.int64),
            lists={place: Ragged.empty(1) for place in step.lists},
            tag_lists={place: Tags.empty(1) for place in step.tag_lists},
            vectors={place: np.zeros((1, widths[place]), np.float32) for place in step.vectors},
        )
        return table._without_null_sums(step)

    def _without_null_sums(self, step: LookupStep) -> Self:
        """Replace nulls by 0 in the sums of steps that pool tags: nulls and unknown tags add nothing."""
        if step.pools:
            np.nan_to_num(self.numbers[:, : len(step.numbers) - step.lasts], copy=False)
        return self

    def find(self, codes: Codes) -> Rows:
        """Return the row of every key; -1 for unknown ones."""
        if self.index is None:
            return np.zeros(1, np.intp) if len(self.numbers) > 1 else np.full(1, -1, np.intp)
        return self.index.rows(codes)


def _index(codes: Codes, step: LookupStep) -> KeyIndex:
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
    ragged = Ragged.from_series(lists)
    return Ragged(ragged.values, np.append(ragged.starts, 0), np.append(ragged.lengths, 0))


def _vectors(values: pl.Series, width: int) -> Vectors:
    return np.vstack([matrix(values, width), np.zeros((1, width), np.float32)])
