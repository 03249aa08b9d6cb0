"""Where the rows of delimited text end, when quoted fields may hold separators and line ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Text = bytes | bytearray

NEWLINE = 0x0A
_QUOTE, _RETURN = 0x22, 0x0D
_MAX_BROKEN = 1_000
_MAX_FIELD_BYTES = 1 << 20


@dataclass(frozen=True)
class Quotes:
    """The quotes of a piece of text."""

    positions: Offsets
    """Offsets of the quotes that open and close fields, in pairs (RFC 4180; a doubled quote is a pair that meets)."""
    broken: Offsets
    """Offsets of the lines in which a quote opens that never closes, or that stands inside a bare field."""

    def outside(self, offsets: Offsets) -> Offsets:
        """Return those of the offsets that lie outside quoted fields."""
        return offsets[np.searchsorted(self.positions, offsets) % 2 == 0] if self.positions.size else offsets

    def after(self, start: int) -> Quotes:
        """Return the quotes of the text from an offset on, a row's beginning."""
        return Quotes(self.positions[self.positions >= start] - start, self.broken[self.broken >= start] - start)


def line_ends(data: Text) -> Offsets:
    """Return the offset of every line end, those inside quoted fields included."""
    return np.flatnonzero(np.frombuffer(data, np.uint8) == NEWLINE)


def count_of(data: Text | memoryview, byte: int) -> int:
    """Return how often a byte occurs, in a quarter of the time of `bytes.count` where it occurs often."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == byte))


NO_QUOTES = Quotes(np.empty(0, np.int64), np.empty(0, np.int64))


def complete_rows(data: Text, separator: int, final: bool) -> tuple[Quotes, int]:
    """Return the quotes of the complete rows of a piece of text, and the offset at which these rows end.

    Args:
        data: Text that begins at a row.
        separator: The byte between fields.
        final: Whether nothing follows, so that an open quote can no longer close.

    Raises:
        ValueError: Broken quotes everywhere: the file does not quote as RFC 4180 does.
    """
    if data.find(b'"') < 0:
        return NO_QUOTES, data.rfind(b"\n") + 1
    # A quote that has been open for this long will never close: no field is that large.
    given_up = len(data) if final else len(data) - _MAX_FIELD_BYTES
    quotes = _pair(data, separator, given_up)
    end = _row_end(data, quotes, _last_open(quotes.positions) if quotes.positions.size % 2 else len(data))
    return Quotes(quotes.positions[quotes.positions < end], quotes.broken[quotes.broken < end]), end


def _row_end(data: Text, quotes: Quotes, limit: int) -> int:
    end = data.rfind(b"\n", 0, limit)
    while end >= 0 and np.searchsorted(quotes.positions, end) % 2:
        end = data.rfind(b"\n", 0, end)
    return end + 1


def _pair(data: Text, separator: int, given_up: int) -> Quotes:
    text = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(text == _QUOTE)
    broken: list[int] = []
    while (wrong := _first_wrong(text, quotes, separator, given_up)) is not None:
        start, end = data.rfind(b"\n", 0, wrong) + 1, data.find(b"\n", wrong)
        broken.append(start)
        if len(broken) > _MAX_BROKEN:
            raise ValueError(
                f'more than {_MAX_BROKEN} lines have a quote (") that opens or closes inside a field, e.g.'
                f" {data[start:end][:80].decode('utf-8', 'replace')!r}. Quote whole fields and double the quotes inside"
                " them (RFC 4180), or remove the quotes."
            )
        # Leave out the quotes of that one line and look again: the lines after it are read as if it were not there.
        quotes = quotes[(quotes < start) | (quotes >= (end if end >= 0 else len(data)))]
    return Quotes(quotes, np.array(sorted(broken), np.int64))


def _first_wrong(text: npt.NDArray[np.uint8], quotes: Offsets, separator: int, given_up: int) -> int | None:
    """Return the offset of the first quote that stands inside a bare field or opens a field it never closes."""
    opens, closes = quotes[0::2], quotes[1::2]
    fresh = _opens_a_field(quotes)
    byte_before = np.where(opens > 0, text[opens - 1], NEWLINE)
    stray = np.flatnonzero(fresh & (byte_before != separator) & (byte_before != NEWLINE))
    byte_after, second_byte_after = (text[np.minimum(closes + step, text.size - 1)] for step in (1, 2))
    at_line_end = (byte_after == NEWLINE) | (byte_after == _RETURN) & (
        (second_byte_after == NEWLINE) | (closes + 2 == text.size)
    )
    closed = (byte_after == separator) | at_line_end | (closes + 1 == text.size)
    closed[: opens.size - 1] |= ~fresh[1:]  # the first half of a doubled quote closes nothing
    torn = np.flatnonzero(~closed)
    if torn.size and not (stray.size and opens[stray[0]] < closes[torn[0]]):
        return int(opens[: torn[0] + 1][fresh[: torn[0] + 1]][-1])
    if stray.size:
        return int(opens[stray[0]])
    return last if quotes.size % 2 and (last := _last_open(quotes)) < given_up else None


def _opens_a_field(quotes: Offsets) -> Flags:
    """Return which of every second quote opens a field, rather than being the second half of a doubled quote."""
    opens, closes = quotes[0::2], quotes[1::2]
    fresh = np.ones(opens.size, bool)
    fresh[1:] = opens[1:] != closes[: opens.size - 1] + 1
    return fresh


def _last_open(quotes: Offsets) -> int:
    return int(quotes[0::2][_opens_a_field(quotes)][-1])
