"""Blocks of clean delimited text, parsed into their types by compiled code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from shortlist.data.reading.text.quoting import NO_QUOTES, Text
from shortlist.data.reading.text.text_blocks import TextBlock

Bytes = npt.NDArray[np.uint8]
BitWords = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int32]

_VIEW_BYTES: Final = 16


class CleanText:
    """Parses what is plainly right, in a fraction of the processor time that Polars takes for the same columns.

    For 2 M rows of 14 integers and 26 hexadecimal categories (493 MB) that is 0.8 s, against 2.0 s for parsing the
    categories as texts and 0.9 s for turning these into numbers.
    """

    def __init__(
        self,
        fields: Sequence[str],
        separator: str,
        types: Mapping[str, pl.DataType],
        hexadecimal: Collection[str],
        null_values: Sequence[str],
    ) -> None:
        """Describe the text.

        Args:
            fields: Names of its fields, in order.
            separator: Between them.
            types: Int64, Float64 or String, of the fields that are wanted.
            hexadecimal: Those of type String that are hexadecimal numbers, to be given as Int64.
            null_values: Texts that mean "no value".
        """
        from shortlist.data.reading.text import text_kernels  # here, so that only readers of text load the compiler

        self._kernels = text_kernels
        self._separator = ord(separator)
        kind_of = {pl.Int64(): text_kernels.INTEGER, pl.Float64(): text_kernels.NUMBER, pl.String(): text_kernels.TEXT}
        kinds = {name: kind_of[types[name]] if name in types else text_kernels.SKIPPED for name in fields}
        kinds |= dict.fromkeys(hexadecimal, text_kernels.HEX)
        arrays = {text_kernels.NUMBER: "numbers", text_kernels.TEXT: "texts", text_kernels.SKIPPED: "none"}
        self._columns: dict[str, tuple[int, int, str]] = {}
        self._counts = Counter[str]()
        for place, (name, kind) in enumerate(kinds.items()):
            array = arrays.get(kind, "integers")
            self._columns[name] = (place, self._counts[array], array)
            self._counts[array] += 1
        usable = [text.encode() for text in null_values if text and not {separator, "\n", "\r"} & {*text}]
        self._described = text_kernels.Fields(
            kinds=np.array(list(kinds.values()), np.uint8),
            slots=np.array([slot for _, slot, _ in self._columns.values()]),
            nulls=np.frombuffer(b"".join(usable), np.uint8),
            null_ends=np.cumsum([len(text) for text in usable], dtype=np.int64),
        )

    def parse(self, block: TextBlock, columns: Sequence[str]) -> pl.DataFrame | None:
        """Return the wanted columns of a block without quotes; None when it takes more than this reader has."""
        data = block.data.replace(b"\r\n", b"\n") if b"\r" in block.data else block.data
        if b"\r" in data or not _is_utf8(data):
            return None
        text, rows = np.frombuffer(data, np.uint8), block.lines
        text.flags.writeable = False  # bytes or bytearray: one kind of array, for which the loops are compiled once
        counts, kernels = self._counts, self._kernels
        into = kernels.Parsed(
            validity=np.zeros((len(self._columns), -(-rows // 64)), np.uint64),
            known=np.zeros(len(self._columns), np.int64),
            integers=np.empty((counts["integers"], rows), np.int64),
            numbers=np.empty((counts["numbers"], rows), np.float64),
            starts=np.empty((counts["texts"], rows), np.int32),
            ends=np.empty((counts["texts"], rows), np.int32),
        )
        if not kernels.parse_rows(text, rows, self._separator, self._described, into):
            return None
        series_by_name = {}
        for name in columns:
            place, slot, array = self._columns[name]
            validity = None if into.known[place] == rows else into.validity[place]
            if array == "texts":
                column = self._texts(text, rows, validity, into.starts[slot], into.ends[slot])
            else:
                values = into.integers[slot] if array == "integers" else into.numbers[slot]
                column = _arrow(pa.from_numpy_dtype(values.dtype), rows, validity, values)
            series_by_name[name] = pl.Series(name, column)
        return pl.DataFrame(series_by_name)

    def _texts(self, text: Bytes, rows: int, validity: BitWords | None, starts: Offsets, ends: Offsets) -> pa.Array:
        is_known = np.ones(rows, np.uint8)
        if validity is not None:
            is_known = np.unpackbits(validity.view(np.uint8), count=rows, bitorder="little")
        lengths = np.where(is_known, ends - starts, 0)
        long_texts = np.empty(int(lengths[lengths > self._kernels.INLINE].sum()), np.uint8)
        views = np.zeros((rows, _VIEW_BYTES), np.uint8)
        self._kernels.text_views(text, is_known.view(np.bool_), starts, ends, views, long_texts)
        return _arrow(pa.string_view(), rows, validity, views, long_texts)


def load() -> None:
    """Load the compiled loops, as the first block would; that takes 0.4 s."""
    CleanText(["field"], ",", {}, (), ()).parse(TextBlock(b"", 1, 0, NO_QUOTES, 0), ())


def _arrow(kind: pa.DataType, rows: int, validity: BitWords | None, *values: npt.NDArray[Any]) -> pa.Array:
    buffers = [None if array is None else pa.py_buffer(array) for array in (validity, *values)]
    return pa.Array.from_buffers(kind, rows, buffers)


def _is_utf8(data: Text) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
