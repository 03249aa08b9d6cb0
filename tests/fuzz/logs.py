"""Strategies for logs in files: sound rows with strange values, types, lines and bytes among them."""

from __future__ import annotations

import csv
import gzip
import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from polars.testing.parametric import series

from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.spec.data import Data
from shortlist.spec.runtime import Runtime
from tests.fuzz.changes import JSON_VALUES, changed_bytes

ROWS: Final = 60
START: Final = datetime(2026, 1, 5, tzinfo=UTC)
NAMES: Final = ("user_id", "item_id", "price", "code", "made", "words", "query", "clicked", "time")
_TYPES: Final = ("integer", "string", "number", "hex", "date", "tags", "vector", "integer", None)


STRANGE_VALUES: Final[tuple[Any, ...]] = (
    None, "", " ", "null", "NULL", "nan", "inf", "-0.0", "1e400", "9" * 30, "9" * 400, "-1", "0x1f",
    "ffffffffffffffff", "1_000", "1,5",
    "2026-02-30", "2026-01-05T25:61:61", "é", "😀", "\u202e", "a\tb", "a,b", 'a"b', '"', "'", "\\", "\\n", "x" * 3_000,
    "[1, 2]", "[", "{}",
    True, False, 0, -1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30, 0.1, 1e308, float("inf"), float("nan"), [],
    [[]], [None], [1, "a"],
    {}, {"a": 1}, {"a": {"b": []}},
)  # fmt: skip

ARROW_COLUMNS: Final[dict[str, pa.Array]] = {
    "large_binary": pa.array([b"\xff\xfe"] * ROWS, pa.large_binary()),
    "struct": pa.array([{"a": n, "b": "x"} for n in range(ROWS)]),
    "empty_struct": pa.array([{}] * ROWS, pa.struct([])),
    "duration": pa.array([timedelta(seconds=n) for n in range(ROWS)]),
    "dictionary": pa.array([str(n % 3) for n in range(ROWS)]).dictionary_encode(),
    "dictionary_of_integers": pa.array([n % 3 for n in range(ROWS)]).dictionary_encode(),
    "decimal": pa.array([Decimal(n) / 4 for n in range(ROWS)], pa.decimal128(20, 3)),
    "wide_decimal": pa.array([Decimal(10) ** 37] * ROWS, pa.decimal128(38, 0)),
    "decimal256": pa.array([Decimal(n) for n in range(ROWS)], pa.decimal256(50, 2)),
    "time": pa.array([n * 1_000_000 for n in range(ROWS)], pa.time64("us")),
    "time32": pa.array(range(ROWS), pa.time32("s")),
    "map": pa.array([[("a", n)] for n in range(ROWS)], pa.map_(pa.string(), pa.int64())),
    "list_of_structs": pa.array([[{"a": n}] for n in range(ROWS)]),
    "list_of_lists": pa.array([[[n]] for n in range(ROWS)]),
    "list_of_binary": pa.array([[b"\xff"]] * ROWS),
    "list_of_booleans": pa.array([[True, None]] * ROWS),
    "list_of_dates": pa.array([[date(2026, 1, 1)]] * ROWS),
    "list_of_durations": pa.array([[timedelta(1)]] * ROWS),
    "list_of_dictionaries": pa.array([["a"]] * ROWS, pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    "list_of_nulls": pa.array([[None]] * ROWS),
    "fixed_list": pa.array([[1.0, 2.0]] * ROWS, pa.list_(pa.float32(), 2)),
    "fixed_list_of_none": pa.array([[]] * ROWS, pa.list_(pa.float32(), 0)),
    "fixed_list_of_texts": pa.array([["a", None]] * ROWS, pa.list_(pa.string(), 2)),
    "fixed_list_of_structs": pa.array([[{"a": 1}]] * ROWS, pa.list_(pa.struct([("a", pa.int8())]), 1)),
    "null": pa.nulls(ROWS),
    "boolean": pa.array([n % 2 == 0 for n in range(ROWS)]),
    "date32": pa.array([date(2026, 1, 1 + n % 28) for n in range(ROWS)]),
    "date64": pa.array([date(2026, 1, 1)] * ROWS, pa.date64()),
    "timestamp_ns": pa.array([START.replace(tzinfo=None)] * ROWS, pa.timestamp("ns")),
    "timestamp_zone": pa.array([START] * ROWS, pa.timestamp("ms", "Asia/Kolkata")),
    "timestamp_offset": pa.array([START] * ROWS, pa.timestamp("s", "+05:30")),
    "timestamp_far": pa.array([2**62] * ROWS, pa.timestamp("s")),
    "timestamp_early": pa.array([-(2**62)] * ROWS, pa.timestamp("us", "UTC")),
    "uint64": pa.array([2**64 - 1 - n for n in range(ROWS)], pa.uint64()),
    "float16": pa.array(np.arange(ROWS, dtype=np.float16)),
    "large_string": pa.array([str(n) for n in range(ROWS)], pa.large_string()),
    "string_view": pa.array([str(n) for n in range(ROWS)], pa.string_view()),
    "interval": pa.array([(1, 2, 3)] * ROWS, pa.month_day_nano_interval()),
    "binary": pa.array([bytes([n]) for n in range(ROWS)], pa.binary()),
}
"""Columns of the types that Arrow knows, those that Parquet cannot hold among them."""
_LINES: Final = (
    "", "null", "[]", "3", '"x"', "{", "{}", '{"user_id":1,"user_id":2}', '{"a":' * 2_000, "[" * 5_000,
    '{"item_id": "\\ud800"}',
    '{"item_id": "\\u00"}', '{"price": 1e99999}', '{"price": -}', '{"user_id": ' + "9" * 5_000 + "}",
    '{"words": [1, [2]]}',
    '{"words": {"a": 1}}', '{"query": [1e999]}', '{"query": ["a"]}', '{"time": "x"}', "\x00", "{'a': 1}",
    '{"": 1}', '{"item_id": {"x": [1]}}', '{"item_id": []}',
    '{"clicked": 1.5}',
    '{"user_id": true}', '{"user_id": 1e3}', '{"made": 3}', '{"time": null}', '{"time": 1e300}',
    '{"time": -1e300}',
)  # fmt: skip


class Log(NamedTuple):
    """A log in a file."""

    name: str
    """Of the file."""
    content: bytes
    header: bool = True
    """Whether the file begins with the names of its columns."""
    side: tuple[str, bytes, str] | None = None
    """Name and content of a side table's file, and the type that its column is declared to have."""


def declared(log: Log) -> Data:
    """Return the declaration of a log."""
    columns = [
        {"name": name, "type": kind, **({"tag_type": "integer"} if name == "words" and log.header else {})}
        for name, kind in zip(NAMES, _TYPES, strict=True)
        if kind
    ]
    rules = {"min_rows": 1, "max_quarantined_share": 1.0, "max_duplicate_share": 1.0, "undeclared_columns": "ignore"}
    rules |= {"min_volume_ratio": 0.0, "max_volume_ratio": 1e9, "max_label_rate_change": 1.0}
    sides = []
    if log.side is not None:
        side_columns = [{"name": "user_id", "type": "integer"}, {"name": "age", "type": log.side[2]}]
        side = {"name": "users", "key": "user_id", "path": log.side[0], "min_coverage": 0.0, "columns": side_columns}
        sides.append(side)
    return Data.model_validate(
        {
            "source": {"kind": "files", "path": log.name, "header": log.header},
            "columns": columns,
            "label": "clicked",
            "clock": {"kind": "column", "column": "time" if log.header else "8", "unit": "s"},
            "user": "user_id",
            "item": "item_id",
            "rules": rules,
            "split": {"warmup_days": 0},
            "side_tables": sides,
        }
    )


def ingest_and_validate(log: Log) -> None:
    """Ingest and validate a log."""
    with TemporaryDirectory(prefix="shortlist-fuzz-") as folder:
        root, data, runtime = Path(folder), declared(log), Runtime(engine="cpu", chunk_rows=1_000)
        (root / "in").mkdir()
        for name, content, *_ in ((log.name, log.content), *([log.side] if log.side else [])):
            (root / "in" / name).write_bytes(content)
        ingest(data, root / "in", root / "raw", runtime)
        validate(data, root / "raw", root / "log", root / "quarantine", runtime, START + timedelta(days=30))


def sound_rows() -> list[dict[str, Any]]:
    """Return rows that are all valid."""
    return [
        {
            "user_id": number % 9,
            "item_id": f"i{number % 5}",
            "price": number / 64,
            "code": f"{number * 2**20:x}",
            "made": "2026-01-01",
            "words": [1, 2],
            "query": [0.5, 0.25],
            "clicked": number % 2,
            "time": int(START.timestamp()) + number * 86_400 * 5 // ROWS,
        }
        for number in range(ROWS)
    ]


def parquet(changed: dict[str, pa.Array], sound: bool = True) -> bytes:
    """Return a Parquet file of sound rows, or of none, with some columns; what Parquet cannot hold gives a torn one."""
    rows = sound_rows() if sound else []
    columns = {name: pa.array([row[name] for row in rows]) for name in NAMES if sound} | changed
    buffer = io.BytesIO()
    try:
        pq.write_table(pa.table(columns), buffer)
    except (pa.ArrowException, OverflowError):
        return b"PAR1"
    return buffer.getvalue()


_ARROW: Final = st.one_of(
    st.sampled_from([*ARROW_COLUMNS.values()]),
    series(min_size=ROWS, max_size=ROWS, excluded_dtypes=[pl.Int128, pl.UInt128]).map(lambda column: column.to_arrow()),
)


@st.composite
def rows_with_strange_values(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw rows of which some, or all, have strange values."""
    rows = sound_rows()
    for _ in range(draw(st.integers(0, 3))):
        column, value = draw(st.sampled_from(NAMES)), draw(st.sampled_from(STRANGE_VALUES) | JSON_VALUES)
        for row in rows[:: draw(st.sampled_from((1, 3, 50)))]:
            row[column] = value
    return rows


@st.composite
def parquet_logs(draw: st.DrawFn) -> Log:
    """Draw a Parquet file in which some columns have any type."""
    return Log("log.parquet", parquet(draw(st.dictionaries(st.sampled_from(NAMES), _ARROW, min_size=1, max_size=3))))


@st.composite
def json_logs(draw: st.DrawFn) -> Log:
    """Draw lines of JSON, some of which are none."""
    lines = [json.dumps(row) for row in draw(rows_with_strange_values())]
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, ROWS - 1))
        cut = st.sampled_from((lines[place][:-1], lines[place] * 2, lines[place].replace(":", "")))
        lines[place] = draw(st.sampled_from(_LINES) | cut | JSON_VALUES.map(json.dumps))
    content = "\n".join(lines).encode("utf-8", "surrogatepass")
    return draw(st.sampled_from((Log("log.jsonl", content), Log("log.jsonl.gz", gzip.compress(content)))))


@st.composite
def delimited_logs(draw: st.DrawFn) -> Log:
    """Draw lines of values between commas or tabs, some of which are too short."""
    header, delimiter = draw(st.booleans()), draw(st.sampled_from((",", "\t")))
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter, lineterminator=draw(st.sampled_from(("\n", "\r\n"))))
    if header:
        writer.writerow(draw(st.just(NAMES) | st.permutations(NAMES)))
    short = draw(st.sets(st.integers(0, ROWS - 1), max_size=5))
    for number, row in enumerate(draw(rows_with_strange_values())):
        values = [",".join(map(str, value)) if isinstance(value, list) else value for value in row.values()]
        writer.writerow(values[: 8 if number in short else 9])
    content = buffer.getvalue().encode("utf-8", "surrogatepass")
    return Log("log.csv" if delimiter == "," else "log.tsv", content, header)


@st.composite
def logs_with_changed_bytes(draw: st.DrawFn) -> Log:
    """Draw a file with bytes changed, cut or repeated."""
    log = draw(delimited_logs() | json_logs() | parquet_logs())
    return log._replace(content=draw(changed_bytes(log.content)))


@st.composite
def side_table_logs(draw: st.DrawFn) -> Log:
    """Draw a sound log with a side table of any type and shape."""
    declared_type = draw(st.sampled_from(("number", "vector", "tags", "date")))
    if draw(st.booleans()):
        content = parquet({"user_id": draw(_ARROW), "age": draw(_ARROW)}, sound=False)
        return Log("log.parquet", parquet({}), side=("users.parquet", content, declared_type))
    keys = np.arange(9), np.arange(9.0), np.array(["a"] * 9), np.zeros((9, 2)), np.arange(9) > 3
    shapes = tuple(np.zeros(shape) for shape in ((9, 3), (8,), (9, 1, 1), (9, 0)))
    dates, texts = np.arange(9).astype("datetime64[D]"), np.array([b"x"] * 9)
    ages = (*shapes, np.array(0), np.arange(9) + 1j, dates, texts, np.arange(9, dtype=np.float16))
    buffer = io.BytesIO()
    np.savez(buffer, user_id=draw(st.sampled_from(keys)), age=draw(st.sampled_from(ages)))
    return Log("log.parquet", parquet({}), side=("users.npz", buffer.getvalue(), declared_type))
