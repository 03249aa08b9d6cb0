"""Rows of edge-case values, which training and serving may read differently: in a log, and in a request."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.contracts import Columns, ShortlistError
from shortlist.data.reading.convert import convert_columns
from shortlist.features.values.columns import DeclaredColumns
from shortlist.serving.export.encoding import encode
from shortlist.serving.export.signature import CODES, NO_CODE, NUMBERS, Signature
from shortlist.serving.server.day_assembler import DayAssembler
from shortlist.serving.server.request_inputs.input_types import preferred_datatype
from shortlist.spec.data import Column, LogFiles, null_texts

Tensors = dict[str, npt.NDArray[Any]]

ROWS: Final = 24
_TEXTS: Final = (
    None, "", " ", " padded ", "a", "A", "NaN", "null", "漢字", "\U0001f600", "e\u0301", "\u00e9", "\0", "a,b", "'\"\\",
    "-0", "1e5", "x" * 300,
)  # fmt: skip
_INTEGERS: Final = (None, 0, 1, -1, 2**31, -(2**31) - 1, 2**53 + 1, 2**62, 2**63 - 1, -(2**63) + 2)
_NUMBERS: Final = (
    None, 0.0, -0.0, 1.5, -1.5, float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 5e-324, 2.0**53 + 2, 1e-7,
)  # fmt: skip
_HEX: Final = (None, "", " ", "0", "ff", "FF", "0xff", " ff ", "7fffffffffffffff", "ffffffffffffffff")
_DATES: Final = (
    None,
    "",
    " ",
    "2026-01-31",
    "1969-07-20",
    "1970-01-01",
    "20260131",
    "2026-01-31T10:20:30",
    "9999-12-31",
)
_DTYPES: Final[Mapping[str, pl.DataType]] = {"integer": pl.Int64(), "number": pl.Float64()}


def edge_case_difference(
    assembler: DayAssembler, signature: Signature, example: pl.DataFrame, day: date,
    look_up: Callable[[pl.DataFrame, date], pl.DataFrame],
) -> str | None:  # fmt: skip
    """Return how serving differs from training for edge-case rows; None when it does not.

    The rows are typed by ingest and looked up by the training table's query; as a request, they are read by the server.

    Args:
        assembler: Assembles tensors as a server does.
        signature: Signature of the model.
        example: A row of the valid log with the values of all other columns.
        day: Day of the example.
        look_up: The training table's query.
    """
    declared = assembler.requirements.declared
    columns = _columns(assembler)
    raw = edge_case_rows(columns, assembler.widths, null_texts_of(declared))
    typed_rows = type_rows(raw, columns, declared)
    log = pl.concat([example] * ROWS).with_columns(
        typed_rows[name].cast(example.schema[name]) for name in typed_rows.columns
    )
    # No events are counted here: open tiles are empty.
    log = log.with_columns(pl.lit(0).alias(place) for place in assembler.requirements.counted_places)
    log = log.drop(assembler.open_lists, strict=False)
    table = encode(look_up(log, day), signature, declared)
    times = log[Columns.TIME].dt.epoch("us").to_list()
    for binary in (False, True):
        form = f"rows with rare values, sent as {'binary tensors' if binary else 'JSON'}"
        try:
            served = dict(assembler.request_tensors(*build_request(raw, columns, times, binary=binary), ROWS, day))
        except ShortlistError as error:
            return f"{form}: refused: {error}"
        if different_inputs := differing_inputs(signature, served, table):
            return f"{form}: inputs {', '.join(different_inputs)} differ from the training table's"
    return None


def _columns(assembler: DayAssembler) -> list[Column]:
    declared, requirements = assembler.requirements.declared, assembler.requirements
    return [
        column
        for column in declared.data.columns
        if (column.name in requirements.columns or column.name == declared.data.item)
        and declared.log_column(column.name) == column.name
        and column.known == "before"
        and (column.type != "vector" or column.name in assembler.widths)
    ]


def differing_inputs(signature: Signature, served: Tensors, table: Tensors) -> list[str]:
    """Return the columns of the inputs that differ."""
    columns = {NUMBERS: signature.numbers, CODES: signature.codes}
    places = {tensor_input.tensor: tensor_input.place for tensor_input in signature.lists}
    places |= {tensor_input.tensor: tensor_input.place for tensor_input in signature.vectors}
    different_places = []
    for name, expected in table.items():
        if name in columns:
            equal = np.isclose(served[name], expected, rtol=1e-12, atol=0, equal_nan=True)
            different_places += [place for number, place in enumerate(columns[name]) if not equal[:, number].all()]
        elif served[name].shape != expected.shape or not np.array_equal(served[name], expected):
            different_places.append(places[name])
    return different_places


def edge_case_rows(columns: Sequence[Column], widths: Mapping[str, int], nulls: Sequence[str]) -> pl.DataFrame:
    """Return `ROWS` rows of edge-case values, as a log's reader returns them before they are typed.

    Args:
        columns: Columns to fill; the widths of vector columns must be given.
        widths: Widths of vector columns.
        nulls: Texts that mean null.
    """
    series = []
    for shift, column in enumerate(columns):
        values = _values(column, widths.get(column.name, 1), tuple(nulls))
        row_values = [values[(row + shift) % len(values)] for row in range(ROWS)]
        series.append(pl.Series(column.source_name, row_values, _dtype(column)))
    return pl.DataFrame(series)


def type_rows(raw: pl.DataFrame, columns: Sequence[Column], declared: DeclaredColumns) -> pl.DataFrame:
    """Return edge-case rows typed by ingest; infinities, which no valid log contains, become null."""
    rows = convert_columns(raw, columns, null_texts_of(declared)).columns
    return rows.with_columns(pl.when(pl.col(pl.Float64()).is_finite()).then(pl.col(pl.Float64())))


def null_texts_of(declared: DeclaredColumns) -> list[str]:
    """Return the texts that mean null in a log."""
    source = declared.data.source
    return sorted(null_texts(source.null_values if isinstance(source, LogFiles) else ()))


def build_request(
    raw: pl.DataFrame, columns: Sequence[Column], times: Sequence[int], *, binary: bool
) -> tuple[bytes, str | None]:
    """Return edge-case rows as a request body, with the length of its JSON if tensors follow it.

    Args:
        raw: Rows of `edge_case_rows`.
        columns: Columns of the rows.
        times: Microseconds since 1970-01-01 UTC.
        binary: Whether the tensors follow the JSON.
    """
    inputs: list[dict[str, Any]] = [{"name": "event_time", "datatype": "INT64", "shape": [ROWS], "data": [*times]}]
    tail = b""
    for column in columns:
        rows = raw[column.source_name].to_list()
        shape = [ROWS]
        if column.type in ("tags", "vector"):
            width = max(len(row or ()) for row in rows)
            shape, rows = [ROWS, width], [value for row in rows for value in [*(row or ()), *[None] * width][:width]]
        tensor: dict[str, Any] = {"name": column.name, "datatype": preferred_datatype(column), "shape": shape}
        if binary:
            packed = _pack(tensor["datatype"], rows)
            tensor["parameters"] = {"binary_data_size": len(packed)}
            tail += packed
        else:
            tensor["data"] = [
                None if isinstance(value, float) and not abs(value) < float("inf") else value for value in rows
            ]
        inputs.append(tensor)
    text = json.dumps({"inputs": inputs}, allow_nan=False).encode()
    return text + tail, str(len(text)) if binary else None


def _values(column: Column, width: int, nulls: tuple[str, ...]) -> tuple[Any, ...]:
    if column.type == "tags":
        texts: tuple[Any, ...] = ("a", "漢字", "\U0001f600", " ", *nulls)
        tags = _INTEGERS[1:] if column.tag_type == "integer" else texts
        return (None, [], *([value] for value in tags), [tags[0], tags[1]], [tags[0], None, tags[0]])
    if column.type == "vector":
        return (None, *([value] * width for value in (0.0, -0.0, 1.5, float("nan"), 1e30)))
    return {
        "string": (*_TEXTS, *nulls), "hex": (*_HEX, *nulls), "date": (*_DATES, *nulls),
        "integer": _INTEGERS, "number": _NUMBERS,
    }[column.type]  # fmt: skip


def _dtype(column: Column) -> pl.DataType:
    match column.type:
        case "tags":
            return pl.List(pl.Int64() if column.tag_type == "integer" else pl.String())
        case "vector":
            return pl.List(pl.Float32())
        case kind:
            return _DTYPES.get(kind, pl.String())


def _pack(datatype: str, values: Sequence[Any]) -> bytes:
    if datatype == "BYTES":
        texts = [(value or "").encode() for value in values]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    code, null = {"INT64": ("q", NO_CODE), "FP64": ("d", float("nan")), "FP32": ("f", float("nan"))}[datatype]
    return struct.pack(f"<{len(values)}{code}", *(null if value is None else value for value in values))
