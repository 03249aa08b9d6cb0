"""Columns of a request in numpy: numbers, codes, ragged lists, vectors; each of one row or of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Self, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.features.hashing import codes_of
from shortlist.serving.export.signature import NO_CODE, NULL_IN_LIST

Numbers = NDArray[np.float64]
"""NaN is null."""
Codes = NDArray[np.int64]
"""Integers as they are, texts as fingerprints; NO_CODE is null."""
Vectors = NDArray[np.float32]
"""Shape (rows, width); zeros are null."""
Rows = NDArray[np.intp]

_MAX_KNOWN_TEXTS: Final = 200_000
_LONGEST_KNOWN_TEXT: Final = 256
"""Characters; what is longer is hardly a key that comes again."""


@dataclass(frozen=True)
class Ragged:
    """Lists of codes, one after another; a null list is empty."""

    values: Codes
    starts: Rows
    """Where each row's values begin, shape (rows,)."""
    lengths: Rows

    @classmethod
    def of(cls, lists: pl.Series) -> Self:
        """Return a column of lists."""
        lengths = lists.list.len().fill_null(0).to_numpy().astype(np.intp)
        values = codes_of(lists.explode(empty_as_null=False, keep_nulls=False)).fill_null(NULL_IN_LIST).to_numpy()
        return cls(cast(Codes, values), np.cumsum(lengths) - lengths, lengths)

    @classmethod
    def of_rows(cls, codes: Codes) -> Self:
        """Return the rows of a matrix; values that are NO_CODE are none."""
        there = codes != NO_CODE
        lengths = there.sum(axis=1)
        return cls(codes[there], np.cumsum(lengths) - lengths, lengths)

    @classmethod
    def empty(cls, rows: int) -> Self:
        """Return rows without values."""
        nothing = np.zeros(rows, np.intp)
        return cls(np.zeros(0, np.int64), nothing, nothing)

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, rows: Rows) -> Ragged:
        """Return some rows, packed; -1 is the last one."""
        lengths = self.lengths[rows]
        starts = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        places = np.arange(total) + np.repeat(self.starts[rows] - starts, lengths)
        return Ragged(self.values[places], starts, lengths)

    def distinct(self) -> Ragged:
        """Return every value of a row once, in order of value."""
        if self.lengths.max(initial=0) <= 1:
            return self
        owner = np.repeat(np.arange(len(self)), self.lengths)
        order = np.lexsort((self.values, owner))
        values, owner = self.values[order], owner[order]
        kept = np.ones(len(values), np.bool_)
        kept[1:] = (values[1:] != values[:-1]) | (owner[1:] != owner[:-1])
        lengths = np.bincount(owner[kept], minlength=len(self))
        return Ragged(values[kept], np.cumsum(lengths) - lengths, lengths)

    def followed_by(self, other: Ragged, most: int) -> Ragged:
        """Return the values of every row, then those of another column's; each of one row or of all.

        Args:
            other: The other column.
            most: Values of a row; those beyond are left out.
        """
        own = np.minimum(self.lengths, most)
        further = np.minimum(other.lengths, most - own)
        own, further = np.broadcast_arrays(own, further)
        lengths = own + further
        starts = np.cumsum(lengths) - lengths
        within = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
        is_own = within < np.repeat(own, lengths)
        places = np.where(
            is_own,
            within + np.repeat(np.broadcast_to(self.starts, lengths.shape), lengths),
            within - np.repeat(own, lengths) + len(self.values)
            + np.repeat(np.broadcast_to(other.starts, lengths.shape), lengths),
        )  # fmt: skip
        return Ragged(np.concatenate([self.values, other.values])[places], starts, lengths)

    def width(self, longest: int | None) -> int:
        """Return the width of `padded`."""
        most = int(self.lengths.max(initial=0))
        return max(1, most if longest is None else min(most, longest))

    def head(self, most: int) -> Ragged:
        """Return the first values of every row."""
        return Ragged(self.values, self.starts, np.minimum(self.lengths, most))

    def packed(self) -> Ragged:
        """Return the rows without values between them."""
        return self.take(np.arange(len(self)))

    def replaced_by(self, other: Ragged, rows: NDArray[np.bool_]) -> Ragged:
        """Return rows of another column where so said, else this one's; each of one row or of all."""
        if not rows.any():
            return self
        lengths = np.where(rows, other.lengths, self.lengths)
        starts = np.where(rows, other.starts + len(self.values), self.starts)
        return Ragged(np.concatenate([self.values, other.values]), starts, lengths)

    def padded(self, longest: int | None) -> Codes:
        """Return a matrix of the values, padded with NO_CODE; at least one wide.

        Args:
            longest: Values of a row beyond are left out; None keeps all.
        """
        lengths = self.lengths if longest is None else np.minimum(self.lengths, longest)
        width = self.width(longest)
        matrix = np.full((len(self), width), NO_CODE, np.int64)
        within = np.arange(width) < lengths[:, None]
        matrix[within] = self.values[(self.starts[:, None] + np.arange(width))[within]]
        return matrix


@dataclass(frozen=True)
class Tags:
    """The distinct values of each row, as numbers of a list of values."""

    values: Codes
    """Some of them may be no row's."""
    numbers: Ragged
    """Of the values."""

    @classmethod
    def of(cls, lists: Ragged) -> Self:
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
        """Return some rows; -1 is the last one."""
        return Tags(self.values, self.numbers.take(rows))

    @property
    def codes(self) -> Ragged:
        """The values themselves, row after row."""
        numbers = self.numbers
        return Ragged(self.values.take(numbers.values), numbers.starts, numbers.lengths)


Column = Numbers | Codes | Vectors | Ragged


def to_codes(values: pl.Series) -> Codes:
    """Return the codes of integers, dates (days) or texts."""
    if values.dtype == pl.Date:
        values = values.cast(pl.Int32)
    return cast(Codes, codes_of(values).fill_null(NO_CODE).to_numpy())


def as_numbers(column: Numbers | Codes) -> Numbers:
    """Return codes of integers as numbers; numbers as they are."""
    if column.dtype != np.int64:
        return cast(Numbers, column)
    return cast(Numbers, np.where(column == NO_CODE, np.nan, column.astype(np.float64)))


def mixed(keys: Sequence[Codes]) -> Codes:
    """Return one code for several columns of a key, each of one row or of all.

    Each column goes through the finalizer of MurmurHash3 (Appleby, 2011), a permutation of 64 bits that mixes all of
    them, so that neither order nor patterns in the ids make two keys meet more often than chance.
    """
    if len(keys) == 1:
        return keys[0]
    first, alone = 0, 0  # a few numbers are mixed faster by Python
    while alone < len(keys) and len(keys[alone]) == 1:
        first = _mixed_one(first ^ (int(keys[alone][0]) & _ALL))
        alone += 1
    hashed = np.array([first], np.uint64)
    for key in keys[alone:]:
        hashed = hashed ^ key.view(np.uint64)
        for factor in _FACTORS:
            hashed ^= hashed >> _SHIFT
            hashed *= factor
        hashed ^= hashed >> _SHIFT
    return cast(Codes, hashed.view(np.int64))


def _mixed_one(code: int) -> int:
    for factor in _WHOLE_FACTORS:
        code = (code ^ (code >> 33)) * factor & _ALL
    return code ^ (code >> 33)


_ALL: Final = 2**64 - 1
_WHOLE_FACTORS: Final = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
_SHIFT: Final = np.uint64(33)
_FACTORS: Final = tuple(np.uint64(factor) for factor in _WHOLE_FACTORS)


class TextCodes:
    """Fingerprints of texts; those of texts met before are remembered, so many and so long."""

    def __init__(self, most: int = _MAX_KNOWN_TEXTS) -> None:
        """Know none.

        Args:
            most: Texts that are remembered, about; beyond, all are forgotten.
        """
        self._most = most
        self._known: dict[str | None, int] = {None: NO_CODE}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, texts: Sequence[str | None]) -> Codes:
        """Return the code of every text."""
        known = self._known
        try:
            return np.fromiter((known[text] for text in texts), np.int64, len(texts))
        except KeyError:
            new = self._learned(known, texts)
            codes = (known[text] if text in known else new[text] for text in texts)
            return np.fromiter(codes, np.int64, len(texts))

    def _learned(self, known: dict[str | None, int], texts: Sequence[str | None]) -> dict[str | None, int]:
        """Return the codes of texts that are not known, and remember them."""
        new = list({text for text in texts if text not in known})
        found = dict(zip(new, to_codes(pl.Series(new, dtype=pl.String)).tolist(), strict=True))
        kept = {text: code for text, code in found.items() if text is not None and len(text) <= _LONGEST_KNOWN_TEXT}
        if len(known) + len(kept) > self._most:
            # Another dictionary: whoever reads the old one goes on with it.
            self._known = {None: NO_CODE, **dict(islice(kept.items(), self._most))}
        else:
            known.update(kept)  # in place: a copy of a large one would take longer than the request
        return found
