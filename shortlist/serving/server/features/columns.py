"""Columns of a request in numpy: numbers, codes, ragged lists, vectors; each of one row or of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Self, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.features.values.hashing import codes_of
from shortlist.serving.export.signature import NO_CODE, NULL_IN_LIST

Numbers = NDArray[np.float64]
"""Numbers; NaN is null."""
Codes = NDArray[np.int64]
"""Integers, and fingerprints of texts; NO_CODE is null."""
Vectors = NDArray[np.float32]
"""Vectors, shape (rows, width); zeros are null."""
Rows = NDArray[np.intp]

_MAX_REMEMBERED_TEXTS: Final = 200_000
_MAX_REMEMBERED_LENGTH: Final = 256
"""In characters; longer texts are unlikely to be keys that occur again."""


@dataclass(frozen=True)
class Ragged:
    """Lists of codes in one flat array; a null list is empty."""

    values: Codes
    starts: Rows
    """Index of each row's first value, shape (rows,)."""
    lengths: Rows

    @classmethod
    def from_series(cls, lists: pl.Series) -> Self:
        """Return a column of lists."""
        lengths = lists.list.len().fill_null(0).to_numpy().astype(np.intp)
        values = codes_of(lists.explode(empty_as_null=False, keep_nulls=False)).fill_null(NULL_IN_LIST).to_numpy()
        return cls(cast(Codes, values), np.cumsum(lengths) - lengths, lengths)

    @classmethod
    def from_matrix(cls, codes: Codes) -> Self:
        """Return the rows of a matrix, without values that are NO_CODE."""
        is_present = codes != NO_CODE
        lengths = is_present.sum(axis=1)
        return cls(codes[is_present], np.cumsum(lengths) - lengths, lengths)

    @classmethod
    def empty(cls, rows: int) -> Self:
        """Return rows without values."""
        zeros = np.zeros(rows, np.intp)
        return cls(np.zeros(0, np.int64), zeros, zeros)

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, rows: Rows) -> Ragged:
        """Return some rows, packed; -1 is the last row."""
        lengths = self.lengths[rows]
        starts = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        value_numbers = np.arange(total) + np.repeat(self.starts[rows] - starts, lengths)
        return Ragged(self.values[value_numbers], starts, lengths)

    def distinct(self) -> Ragged:
        """Return the distinct values of every row, sorted."""
        if self.lengths.max(initial=0) <= 1:
            return self
        row_numbers = np.repeat(np.arange(len(self)), self.lengths)
        order = np.lexsort((self.values, row_numbers))
        values, row_numbers = self.values[order], row_numbers[order]
        is_first = np.ones(len(values), np.bool_)
        is_first[1:] = (values[1:] != values[:-1]) | (row_numbers[1:] != row_numbers[:-1])
        lengths = np.bincount(row_numbers[is_first], minlength=len(self))
        return Ragged(values[is_first], np.cumsum(lengths) - lengths, lengths)

    def followed_by(self, following: Ragged, max_length: int) -> Ragged:
        """Return the values of every row followed by those of another column; each of one row or of all.

        Args:
            following: The column to append.
            max_length: Most values of a row; further values are left out.
        """
        own_lengths = np.minimum(self.lengths, max_length)
        following_lengths = np.minimum(following.lengths, max_length - own_lengths)
        own_lengths, following_lengths = np.broadcast_arrays(own_lengths, following_lengths)
        lengths = own_lengths + following_lengths
        starts = np.cumsum(lengths) - lengths
        row_offsets = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
        is_own = row_offsets < np.repeat(own_lengths, lengths)
        value_numbers = np.where(
            is_own,
            row_offsets + np.repeat(np.broadcast_to(self.starts, lengths.shape), lengths),
            row_offsets - np.repeat(own_lengths, lengths) + len(self.values)
            + np.repeat(np.broadcast_to(following.starts, lengths.shape), lengths),
        )  # fmt: skip
        return Ragged(np.concatenate([self.values, following.values])[value_numbers], starts, lengths)

    def width(self, max_length: int | None) -> int:
        """Return the width of `padded`."""
        longest_row = int(self.lengths.max(initial=0))
        return max(1, longest_row if max_length is None else min(longest_row, max_length))

    def head(self, max_length: int) -> Ragged:
        """Return the first `max_length` values of every row."""
        return Ragged(self.values, self.starts, np.minimum(self.lengths, max_length))

    def packed(self) -> Ragged:
        """Return the rows without gaps between their values."""
        return self.take(np.arange(len(self)))

    def replaced_by(self, replacement: Ragged, rows: NDArray[np.bool_]) -> Ragged:
        """Return the replacement's rows where `rows` is true, else this column's; each of one row or of all."""
        if not rows.any():
            return self
        lengths = np.where(rows, replacement.lengths, self.lengths)
        starts = np.where(rows, replacement.starts + len(self.values), self.starts)
        return Ragged(np.concatenate([self.values, replacement.values]), starts, lengths)

    def padded(self, max_length: int | None) -> Codes:
        """Return a matrix of the values, padded with NO_CODE; at least one column wide.

        Args:
            max_length: Most values of a row; further values are left out; None keeps all.
        """
        lengths = self.lengths if max_length is None else np.minimum(self.lengths, max_length)
        width = self.width(max_length)
        matrix = np.full((len(self), width), NO_CODE, np.int64)
        is_filled = np.arange(width) < lengths[:, None]
        matrix[is_filled] = self.values[(self.starts[:, None] + np.arange(width))[is_filled]]
        return matrix


@dataclass(frozen=True)
class Tags:
    """The distinct values of each row, as indices into an array of values."""

    values: Codes
    """Distinct values; some may occur in no row."""
    numbers: Ragged
    """Indices into `values`, per row."""

    @classmethod
    def from_ragged(cls, lists: Ragged) -> Self:
        """Return the distinct values of each row."""
        distinct = lists.distinct()
        values, numbers = np.unique(distinct.values, return_inverse=True)
        return cls(values, Ragged(numbers, distinct.starts, distinct.lengths))

    @classmethod
    def empty(cls, rows: int) -> Self:
        """Return rows without values."""
        return cls(np.zeros(0, np.int64), Ragged.empty(rows))

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: Rows) -> Tags:
        """Return some rows; -1 is the last row."""
        return Tags(self.values, self.numbers.take(rows))

    @property
    def codes(self) -> Ragged:
        """The values of each row."""
        numbers = self.numbers
        return Ragged(self.values.take(numbers.values), numbers.starts, numbers.lengths)


Column = Numbers | Codes | Vectors | Ragged


def to_codes(values: pl.Series) -> Codes:
    """Return the codes of integers, dates (days) or texts."""
    if values.dtype == pl.Date:
        values = values.cast(pl.Int32)
    return cast(Codes, codes_of(values).fill_null(NO_CODE).to_numpy())


def as_numbers(column: Numbers | Codes) -> Numbers:
    """Return a column as numbers; NO_CODE becomes NaN."""
    if column.dtype != np.int64:
        return cast(Numbers, column)
    return cast(Numbers, np.where(column == NO_CODE, np.nan, column.astype(np.float64)))


def combine_keys(keys: Sequence[Codes]) -> Codes:
    """Return one code per row for a key of several columns, each of one row or of all.

    Each column goes through the finalizer of MurmurHash3 (Appleby, 2011), a permutation of 64 bits that mixes all of
    them, so that neither order nor patterns in the ids make two keys collide more often than by chance.
    """
    if len(keys) == 1:
        return keys[0]
    constant_code, constant_keys = 0, 0  # single numbers are mixed faster in Python
    while constant_keys < len(keys) and len(keys[constant_keys]) == 1:
        constant_code = _mix_code(constant_code ^ (int(keys[constant_keys][0]) & _MASK_64))
        constant_keys += 1
    hashed = np.array([constant_code], np.uint64)
    for key in keys[constant_keys:]:
        hashed = hashed ^ key.view(np.uint64)
        for factor in _FACTORS:
            hashed ^= hashed >> _SHIFT
            hashed *= factor
        hashed ^= hashed >> _SHIFT
    return cast(Codes, hashed.view(np.int64))


def _mix_code(code: int) -> int:
    for factor in _INT_FACTORS:
        code = (code ^ (code >> 33)) * factor & _MASK_64
    return code ^ (code >> 33)


_MASK_64: Final = 2**64 - 1
_INT_FACTORS: Final = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
_SHIFT: Final = np.uint64(33)
_FACTORS: Final = tuple(np.uint64(factor) for factor in _INT_FACTORS)


class TextCodes:
    """Computes fingerprints of texts, with a cache of limited size."""

    def __init__(self, max_texts: int = _MAX_REMEMBERED_TEXTS) -> None:
        """Create an empty cache.

        Args:
            max_texts: Approximate size of the cache; when it is exceeded, the cache is cleared.
        """
        self._max_texts = max_texts
        self._code_by_text: dict[str | None, int] = {None: NO_CODE}

    def __len__(self) -> int:
        return len(self._code_by_text)

    def encode(self, texts: Sequence[str | None]) -> Codes:
        """Return the code of every text."""
        code_by_text = self._code_by_text
        try:
            return np.fromiter((code_by_text[text] for text in texts), np.int64, len(texts))
        except KeyError:
            new_codes = self._learn(code_by_text, texts)
            codes = (code_by_text[text] if text in code_by_text else new_codes[text] for text in texts)
            return np.fromiter(codes, np.int64, len(texts))

    def _learn(self, code_by_text: dict[str | None, int], texts: Sequence[str | None]) -> dict[str | None, int]:
        """Return the codes of texts that are not cached, and cache them."""
        new_texts = list({text for text in texts if text not in code_by_text})
        new_codes = dict(zip(new_texts, to_codes(pl.Series(new_texts, dtype=pl.String)).tolist(), strict=True))
        remembered = {
            text: code for text, code in new_codes.items() if text is not None and len(text) <= _MAX_REMEMBERED_LENGTH
        }
        if len(code_by_text) + len(remembered) > self._max_texts:
            # A new dictionary: readers of the old one continue with it.
            self._code_by_text = {None: NO_CODE, **dict(islice(remembered.items(), self._max_texts))}
        else:
            code_by_text.update(remembered)  # in place: a copy of a large one would take longer than the request
        return new_codes
