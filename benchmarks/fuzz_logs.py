"""Random logs: whatever lies in the files, ingest and validation end with rows or a message, never with a traceback.

Usage: python -m benchmarks.fuzz_logs [--cases 10000] [--seed 1]
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bench import record_fuzzing
from shortlist.contracts import ShortlistError
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.spec.data import Data
from shortlist.spec.runtime import Runtime

ROWS: Final = 60
_START: Final = datetime(2026, 1, 5, tzinfo=UTC)
_NAMES: Final = ("user_id", "item_id", "price", "code", "made", "words", "query", "clicked", "time")
_KINDS: Final = ("integer", "string", "number", "hex", "date", "tags", "vector", "integer", None)
_STRANGE: Final[tuple[Any, ...]] = (
    None, "", " ", "null", "NULL", "nan", "inf", "-0.0", "1e400", "9" * 30, "9" * 400, "-1", "0x1f",
    "ffffffffffffffff", "1_000", "1,5",
    "2026-02-30", "2026-01-05T25:61:61", "é", "😀", "\u202e", "a\tb", "a,b", 'a"b', '"', "'", "\\", "\\n", "x" * 3_000,
    "[1, 2]", "[", "{}",
    True, False, 0, -1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30, 0.1, 1e308, float("inf"), float("nan"), [],
    [[]], [None], [1, "a"],
    {}, {"a": 1}, {"a": {"b": []}},
)  # fmt: skip

_ARROW: Final[dict[str, Callable[[random.Random, int], pa.Array]]] = {
    "binary": lambda draw, rows: pa.array([draw.randbytes(draw.randrange(9)) for _ in range(rows)], pa.binary()),
    "large_binary": lambda draw, rows: pa.array([b"\xff\xfe"] * rows, pa.large_binary()),
    "fixed_binary": lambda draw, rows: pa.array([draw.randbytes(4) for _ in range(rows)], pa.binary(4)),
    "struct": lambda draw, rows: pa.array([{"a": n, "b": "x"} for n in range(rows)]),
    "empty_struct": lambda draw, rows: pa.array([{}] * rows, pa.struct([])),
    "duration": lambda draw, rows: pa.array([timedelta(seconds=n) for n in range(rows)]),
    "dictionary": lambda draw, rows: pa.array([str(n % 3) for n in range(rows)]).dictionary_encode(),
    "dictionary_of_integers": lambda draw, rows: pa.array([n % 3 for n in range(rows)]).dictionary_encode(),
    "decimal": lambda draw, rows: pa.array([Decimal(n) / 4 for n in range(rows)], pa.decimal128(20, 3)),
    "wide_decimal": lambda draw, rows: pa.array([Decimal(10) ** 37] * rows, pa.decimal128(38, 0)),
    "decimal256": lambda draw, rows: pa.array([Decimal(n) for n in range(rows)], pa.decimal256(50, 2)),
    "time": lambda draw, rows: pa.array([n * 1_000_000 for n in range(rows)], pa.time64("us")),
    "time32": lambda draw, rows: pa.array(range(rows), pa.time32("s")),
    "map": lambda draw, rows: pa.array([[("a", n)] for n in range(rows)], pa.map_(pa.string(), pa.int64())),
    "list_of_structs": lambda draw, rows: pa.array([[{"a": n}] for n in range(rows)]),
    "list_of_lists": lambda draw, rows: pa.array([[[n]] for n in range(rows)]),
    "list_of_binary": lambda draw, rows: pa.array([[b"\xff"]] * rows),
    "list_of_booleans": lambda draw, rows: pa.array([[True, None]] * rows),
    "list_of_dates": lambda draw, rows: pa.array([[date(2026, 1, 1)]] * rows),
    "list_of_durations": lambda draw, rows: pa.array([[timedelta(1)]] * rows),
    "list_of_dictionaries": lambda draw, rows: pa.array(
        [["a"]] * rows, pa.list_(pa.dictionary(pa.int8(), pa.string()))
    ),
    "list_of_nulls": lambda draw, rows: pa.array([[None]] * rows),
    "fixed_list": lambda draw, rows: pa.array([[1.0, 2.0]] * rows, pa.list_(pa.float32(), 2)),
    "fixed_list_of_none": lambda draw, rows: pa.array([[]] * rows, pa.list_(pa.float32(), 0)),
    "fixed_list_of_texts": lambda draw, rows: pa.array([["a", None]] * rows, pa.list_(pa.string(), 2)),
    "fixed_list_of_structs": lambda draw, rows: pa.array(
        [[{"a": 1}]] * rows, pa.list_(pa.struct([("a", pa.int8())]), 1)
    ),
    "null": lambda draw, rows: pa.nulls(rows),
    "boolean": lambda draw, rows: pa.array([n % 2 == 0 for n in range(rows)]),
    "date32": lambda draw, rows: pa.array([date(2026, 1, 1 + n % 28) for n in range(rows)]),
    "date64": lambda draw, rows: pa.array([date(2026, 1, 1)] * rows, pa.date64()),
    "timestamp_ns": lambda draw, rows: pa.array([_START.replace(tzinfo=None)] * rows, pa.timestamp("ns")),
    "timestamp_zone": lambda draw, rows: pa.array([_START] * rows, pa.timestamp("ms", "Asia/Kolkata")),
    "timestamp_offset": lambda draw, rows: pa.array([_START] * rows, pa.timestamp("s", "+05:30")),
    "timestamp_far": lambda draw, rows: pa.array([2**62] * rows, pa.timestamp("s")),
    "timestamp_early": lambda draw, rows: pa.array([-(2**62)] * rows, pa.timestamp("us", "UTC")),
    "uint64": lambda draw, rows: pa.array([2**64 - 1 - n for n in range(rows)], pa.uint64()),
    "float16": lambda draw, rows: pa.array(np.arange(rows, dtype=np.float16)),
    "large_string": lambda draw, rows: pa.array([str(n) for n in range(rows)], pa.large_string()),
    "string_view": lambda draw, rows: pa.array([str(n) for n in range(rows)], pa.string_view()),
    "floats": lambda draw, rows: pa.array([draw.choice((0.5, -0.0, float("nan"), float("inf"))) for _ in range(rows)]),
    "integers": lambda draw, rows: pa.array([draw.choice((0, 1, 2**53, -(2**63))) for _ in range(rows)]),
    "texts": lambda draw, rows: pa.array([str(draw.choice(_STRANGE))[:50] for _ in range(rows)]),
    "interval": lambda draw, rows: pa.array([(1, 2, 3)] * rows, pa.month_day_nano_interval()),
}
"""Columns of every type that Arrow knows, those that Parquet cannot hold among them."""


class Failure(NamedTuple):
    """A log that ended neither with rows nor with a message."""

    description: str
    problem: str


class Log(NamedTuple):
    """A log of a case."""

    description: str
    """How to make it again."""
    name: str
    """Of the file."""
    data: bytes
    declared: dict[str, Any]
    side: tuple[str, bytes] | None = None
    """A side table's file."""


def cases(count: int, seed: int) -> Iterator[Log]:
    """Give logs: every Arrow type in every column first, then random ones."""
    all_cases = [(column, kind) for kind in _ARROW for column in _NAMES][:count]
    for column, kind in all_cases:
        yield _parquet(random.Random(column), {column: kind}, f"parquet: {column} is {kind}")
    for number in range(len(all_cases), count):
        draw = random.Random(f"{seed}/{number}")
        make = draw.choices((_random_parquet, _json_lines, _delimited, _broken_bytes, _side), (2, 3, 3, 2, 1))[0]
        log = make(draw)
        yield log._replace(description=f"{log.description} (seed {seed}/{number})")


def take(log: Log) -> None:
    """Ingest and validate a log."""
    with TemporaryDirectory(prefix="shortlist-fuzz-") as folder:
        root = Path(folder)
        (root / "in").mkdir()
        for name, data in ((log.name, log.data), *([log.side] if log.side else [])):
            (root / "in" / name).write_bytes(data)
        runtime = Runtime(engine="cpu", chunk_rows=1_000)
        declared = Data.model_validate(log.declared)
        ingest(declared, root / "in", root / "raw", runtime)
        validate(declared, root / "raw", root / "log", root / "quarantine", runtime, _START + timedelta(days=30))


def check(log: Log) -> str:
    """Return what is wrong with how a log is treated; empty when it is taken, or refused with a message."""
    try:
        take(log)
    except ShortlistError as error:
        message = str(error)
        return "" if 0 < len(message) < 20_000 else f"a message of {len(message):,} characters"
    except BaseException as error:  # a panic of Polars is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return "".join(traceback.format_exception(error)[-4:])[-3_000:]
    return ""


def run(count: int, seed: int) -> tuple[int, list[Failure], float]:
    """Return how many logs were tried, those that failed, and the longest time that one took in seconds."""
    case_count, failures, longest = 0, [], 0.0
    for log in cases(count, seed):
        started = time.perf_counter()
        problem = check(log)
        longest = max(longest, time.perf_counter() - started)
        case_count += 1
        if problem:
            failures.append(Failure(log.description, problem))
    return case_count, failures, longest


def _declared(name: str, header: bool = True, **options: Any) -> dict[str, Any]:
    columns = [
        {"name": column, "type": kind, **({"tag_type": "integer"} if column == "words" and header else {})}
        for column, kind in zip(_NAMES, _KINDS, strict=True)
        if kind
    ]
    loose = {"min_rows": 1, "max_quarantined_share": 1.0, "max_duplicate_share": 1.0, "undeclared_columns": "ignore"}
    loose |= {"min_volume_ratio": 0.0, "max_volume_ratio": 1e9, "max_label_rate_change": 1.0}
    return {
        "source": {"kind": "files", "path": name, "header": header},
        "columns": columns,
        "label": "clicked",
        "clock": {"kind": "column", "column": "time" if header else "8", "unit": "s"},
        "user": "user_id",
        "item": "item_id",
        "rules": loose,
        "split": {"warmup_days": 0},
        **options,
    }


def _row(draw: random.Random, number: int) -> dict[str, Any]:
    """Return a sound row."""
    return {
        "user_id": draw.randrange(9),
        "item_id": f"i{draw.randrange(5)}",
        "price": round(draw.random(), 3),
        "code": f"{draw.randrange(2**32):x}",
        "made": "2026-01-01",
        "words": [1, 2],
        "query": [0.5, 0.25],
        "clicked": draw.randrange(2),
        "time": int(_START.timestamp()) + number * 86_400 * 5 // ROWS,
    }


def _rows(draw: random.Random) -> list[dict[str, Any]]:
    """Return rows of which some, or all, have strange values."""
    rows = [_row(draw, number) for number in range(ROWS)]
    for _ in range(draw.choice((0, 1, 3))):
        column, value = draw.choice(_NAMES), draw.choice(_STRANGE)
        share = draw.choice((0.02, 0.3, 1.0))
        for row in rows:
            if draw.random() < share:
                row[column] = value
    return rows


def _parquet(draw: random.Random, strange: dict[str, str], description: str) -> Log:
    rows = [_row(draw, number) for number in range(ROWS)]
    columns = {name: pa.array([row[name] for row in rows]) for name in _NAMES}
    columns |= {name: _ARROW[kind](draw, ROWS) for name, kind in strange.items()}
    buffer = io.BytesIO()
    try:
        pq.write_table(pa.table(columns), buffer)
    except (pa.ArrowException, OverflowError):  # what Parquet cannot hold
        buffer = io.BytesIO(b"PAR1")
    return Log(description, "log.parquet", buffer.getvalue(), _declared("log.parquet"))


def _random_parquet(draw: random.Random) -> Log:
    strange = {draw.choice(_NAMES): draw.choice(list(_ARROW)) for _ in range(draw.randrange(1, 4))}
    return _parquet(draw, strange, f"parquet: {strange}")


def _json_lines(draw: random.Random) -> Log:
    lines = [json.dumps(row) for row in _rows(draw)]
    for _ in range(draw.choice((0, 1, 4))):
        at = draw.randrange(len(lines))
        lines[at] = draw.choice((
            "", "null", "[]", "3", '"x"', "{", "{}", '{"user_id":1,"user_id":2}', '{"a":' * 2_000, "[" * 5_000,
            '{"item_id": "\\ud800"}',
            '{"item_id": "\\u00"}', '{"price": 1e99999}', '{"price": -}', '{"user_id": ' + "9" * 5_000 + "}",
            '{"words": [1, [2]]}',
            '{"words": {"a": 1}}', '{"query": [1e999]}', '{"query": ["a"]}', '{"time": "x"}', "\x00", "{'a': 1}",
            '{"": 1}', lines[at][:-1],
            lines[at] + lines[at], lines[at].replace(":", ""), '{"item_id": {"x": [1]}}', '{"item_id": []}',
            '{"clicked": 1.5}',
            '{"user_id": true}', '{"user_id": 1e3}', '{"made": 3}', '{"time": null}', '{"time": 1e300}',
            '{"time": -1e300}',
        ))  # fmt: skip
    if draw.random() < 0.1:
        lines = [draw.choice(lines)] * draw.choice((1, 40))
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    name = draw.choice(("log.jsonl", "log.jsonl", "log.jsonl.gz"))
    return Log("json lines", name, gzip.compress(data) if name.endswith(".gz") else data, _declared(name))


def _delimited(draw: random.Random) -> Log:
    header, tabs = draw.random() < 0.8, draw.random() < 0.3
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter="\t" if tabs else ",", lineterminator=draw.choice(("\n", "\r\n")))
    if header:
        writer.writerow(draw.sample(_NAMES, len(_NAMES)) if draw.random() < 0.1 else _NAMES)
    for row in _rows(draw):
        values = [",".join(map(str, value)) if isinstance(value, list) else value for value in row.values()]
        writer.writerow(values[: draw.choice((9, 9, 9, 9, 9, 9, 9, 9, 8, 1))])
    name = "log.tsv" if tabs else "log.csv"
    return Log("delimited", name, buffer.getvalue().encode("utf-8", "surrogatepass"), _declared(name, header))


def _broken_bytes(draw: random.Random) -> Log:
    """Return one of the others with bytes changed, cut or doubled."""
    log = draw.choice((_delimited, _json_lines, _random_parquet))(draw)
    data = bytearray(log.data)
    for _ in range(draw.choice((1, 3, 30))):
        at = draw.randrange(len(data) + 1)
        if draw.random() < 0.3:
            del data[at : at + draw.choice((1, 10, 1_000))]
        else:
            data[at:at] = draw.choice(
                (b"\x00", b'"', b"\n", b"\r", b"\xff\xfe", b"\xef\xbb\xbf", b",", b"\t", b"{", b"\\", b"\xc3")
            )
    return log._replace(description=f"{log.description}, bytes changed", data=bytes(data))


def _side(draw: random.Random) -> Log:
    """Return a sound log with a strange side table."""
    log = _parquet(draw, {}, "side table")
    table = {"key": "user_id", "name": "users", "min_coverage": 0.0}
    columns = [
        {"name": "user_id", "type": "integer"},
        {"name": "age", "type": draw.choice(("number", "vector", "tags", "date"))},
    ]
    if draw.random() < 0.5:
        keys = np.arange(9), np.arange(9.0), np.array(["a"] * 9), np.zeros((9, 2)), np.arange(9) > 3
        ages = (
            *(np.zeros(shape) for shape in ((9, 3), (8,), (9, 1, 1), (9, 0))), np.array(0), np.arange(9) + 1j,
            np.arange(9).astype("datetime64[D]"), np.array([b"x"] * 9), np.arange(9, dtype=np.float16),
        )  # fmt: skip
        arrays = {"user_id": draw.choice(keys), "age": draw.choice(ages)}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        side = ("users.npz", buffer.getvalue())
    else:
        kinds = draw.choice(list(_ARROW)), draw.choice(list(_ARROW))
        buffer = io.BytesIO()
        try:
            pq.write_table(pa.table({"user_id": _ARROW[kinds[0]](draw, 9), "age": _ARROW[kinds[1]](draw, 9)}), buffer)
        except pa.ArrowException:
            buffer = io.BytesIO(b"")
        side = ("users.parquet", buffer.getvalue())
        log = log._replace(description=f"side table of {kinds}")
    declared = {**log.declared, "side_tables": [{**table, "path": side[0], "columns": columns}]}
    return log._replace(declared=declared, side=side)


def main() -> None:
    """Try logs and say how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    case_count, failures, longest = run(options.cases, options.seed)
    for failure in failures[:10]:
        sys.stdout.write(f"--- {failure.description}\n{failure.problem}\n")
    sys.stdout.write(f"logs: {case_count:,} tried, {len(failures):,} failed; the slowest took {longest:.2f} s\n")
    record_fuzzing("logs", case_count, len(failures))
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
