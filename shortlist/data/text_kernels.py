"""The fields of clean delimited text, found and turned into numbers in one pass over its bytes."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shortlist.compiled import compiled

SKIPPED: Final = 0
TEXT: Final = 1
INTEGER: Final = 2
HEX: Final = 3
NUMBER: Final = 4

INLINE: Final = 12
"""Bytes of a text that Arrow keeps in its view."""

_NEWLINE: Final = 0x0A
_MINUS: Final = 0x2D
_POINT: Final = 0x2E
_MOST_DIGITS: Final = 18
"""Of an integer: any so long is below 2^63."""
_MOST_HEX: Final = 16
_EXACT_DIGITS: Final = 15
"""Of a number with a point: any so long is below 2^53, its power of ten is exact too, and one division rounds once."""
_POWERS: Final = 10.0 ** np.arange(_EXACT_DIGITS + 1)
_NOT_HEX: Final = 0x80
_HEX: Final = np.full(256, _NOT_HEX, np.uint8)
_HEX[[*b"0123456789abcdef"]] = np.arange(16)
_HEX[[*b"ABCDEF"]] = np.arange(10, 16)

Bytes = npt.NDArray[np.uint8]


class Fields(NamedTuple):
    """What the fields of a row are."""

    kinds: npt.NDArray[np.uint8]
    """Of each field."""
    slots: npt.NDArray[np.int64]
    """Of each field, its column in the array for its kind."""
    nulls: Bytes
    """Texts that mean there is nothing, one after the other."""
    null_ends: npt.NDArray[np.int64]
    """Where each of them ends."""


class Parsed(NamedTuple):
    """Arrays for what is found; a value is written where it is known."""

    known: npt.NDArray[np.bool_]
    """Fields x rows: whether there is anything."""
    integers: npt.NDArray[np.int64]
    """Columns x rows, of kind INTEGER or HEX."""
    numbers: npt.NDArray[np.float64]
    """Columns x rows, of kind NUMBER."""
    starts: npt.NDArray[np.int32]
    """Columns x rows, of kind TEXT: where it begins."""
    ends: npt.NDArray[np.int32]
    """Columns x rows, of kind TEXT: where it ends."""


@compiled
def parse_rows(text: Bytes, separator: int, fields: Fields, into: Parsed) -> bool:
    """Take rows apart; return whether all of them are clean: each has all fields, and every field is of its kind.

    Clean are: nothing at all; an integer of at most 18 decimal digits; at most 16 hexadecimal digits, kept as 64 bits;
    a number of as many decimal digits, at most 15 where a point is among them. What else might be right is for a slower
    reader.

    Args:
        text: Whole rows, as many as the arrays have, each with its line end, without quotes.
        separator: Byte between fields.
        fields: What they are.
        into: Where they go.
    """
    count, rows = into.known.shape
    place = 0
    for row in range(rows):
        for field in range(count):
            stop = separator if field + 1 < count else _NEWLINE
            kind, slot = fields.kinds[field], fields.slots[field]
            first = end = place + _null_bytes(text, place, stop, fields)
            clean = True
            if kind == HEX:
                end, bits, clean = _hexadecimal(text, first, separator)
                into.integers[slot, row] = bits
            elif kind in (INTEGER, NUMBER):
                end, value, digits, after = _decimal(text, first, separator)
                if kind == INTEGER:
                    clean = after < 0 and digits <= _MOST_DIGITS and (digits > 0 or end == first)
                    into.integers[slot, row] = value
                else:
                    clean = digits <= (_EXACT_DIGITS if after >= 0 else _MOST_DIGITS)
                    clean = clean and (digits > max(after, 0) or end == first)
                    into.numbers[slot, row] = value / _POWERS[max(after, 0)] if clean else 0.0
            else:
                end = _text(text, first, separator)
                if kind == TEXT:
                    into.starts[slot, row], into.ends[slot, row] = first, end
            if not clean or text[end] != stop:
                return False
            into.known[field, row] = end > first
            place = end + 1
    return True


@compiled
def text_views(
    text: Bytes,
    known: npt.NDArray[np.bool_],
    starts: npt.NDArray[np.int32],
    ends: npt.NDArray[np.int32],
    views: Bytes,
    kept: Bytes,
) -> None:
    """Write a column's texts as Arrow's views.

    Args:
        text: What holds them.
        known: Rows: whether there is a text.
        starts: Rows: where it begins.
        ends: Rows: where it ends.
        views: Rows x 16 bytes of zeros, written: the length; then the text itself up to 12 bytes, otherwise its first 4
            bytes, a buffer's number (0) and its start there.
        kept: That buffer, written: the longer texts, one after the other.
    """
    used = 0
    for row in range(known.size):
        if not known[row]:
            continue
        start, length = starts[row], ends[row] - starts[row]
        for byte in range(4):
            views[row, byte] = (length >> (8 * byte)) & 255
        for byte in range(length if length <= INLINE else 4):
            views[row, 4 + byte] = text[start + byte]
        if length > INLINE:
            for byte in range(4):
                views[row, 12 + byte] = (used >> (8 * byte)) & 255
            kept[used : used + length] = text[start : start + length]
            used += length


@compiled
def _null_bytes(text: Bytes, place: int, stop: int, fields: Fields) -> int:
    """Return the length of the field at a place if it is a text that means nothing, otherwise 0."""
    begin = 0
    for end in fields.null_ends:
        length = end - begin
        if place + length < text.size and text[place + length] == stop:
            same = 0
            while same < length and text[place + same] == fields.nulls[begin + same]:
                same += 1
            if same == length:
                return int(length)
        begin = end
    return 0


@compiled
def _text(text: Bytes, place: int, separator: int) -> int:
    """Return where the field at a place ends."""
    while text[place] not in (separator, _NEWLINE):
        place += 1
    return place


@compiled
def _hexadecimal(text: Bytes, place: int, separator: int) -> tuple[int, np.int64, bool]:
    """Return where the field at a place ends, its bits, and whether it is nothing but hexadecimal digits."""
    first, bits, wrong = place, np.uint64(0), np.uint8(0)
    while text[place] not in (separator, _NEWLINE):
        digit = _HEX[text[place]]
        wrong |= digit
        bits = (bits << np.uint64(4)) | np.uint64(digit & 15)
        place += 1
    return place, np.int64(bits), bool(wrong < _NOT_HEX and place - first <= _MOST_HEX)


@compiled
def _decimal(text: Bytes, place: int, separator: int) -> tuple[int, np.int64, int, int]:
    """Return where the number at a place ends, its digits as an integer, how many they are, and how many after a point.

    The last is -1 where there is no point. What is no number ends early.
    """
    negative = text[place] == _MINUS
    place += negative
    value, digits, before = np.int64(0), 0, -1
    while text[place] not in (separator, _NEWLINE):
        digit = np.uint8(text[place] - 48)
        if digit < 10:
            value = value * 10 + np.int64(digit)
            digits += 1
        elif text[place] == _POINT and before < 0:
            before = digits
        else:
            break
        place += 1
    return place, -value if negative else value, digits, digits - before if before >= 0 else -1
