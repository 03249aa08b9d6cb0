"""The tables that lie at a path, and their first rows as they stand there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final, Literal

import polars as pl
import pyarrow.parquet as pq

from shortlist.contracts import DataError
from shortlist.data.streams import opened
from shortlist.first_spec.columns import ColumnLook, look_at

TableFormat = Literal["csv", "tsv", "jsonl", "parquet"]

_BY_NAME: Final[dict[str, TableFormat]] = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet",
    ".inter": "tsv", ".user": "tsv", ".item": "tsv",
}  # fmt: skip
_OWN_NAMES: Final = frozenset((".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"))
"""Endings by which a run knows the format without being told."""
_TEXT: Final = (".txt", ".data", ".dat", ".log")
_PACKED: Final = (".gz", ".zst")
_SEPARATORS: Final[dict[str, str]] = {"csv": ",", "tsv": "\t"}
_MOST_ROWS: Final = 300_000
_MOST_BYTES: Final = 64 << 20
_MOST_FILES: Final = 400


@dataclass(frozen=True, eq=False)
class Table:
    """Files of the same columns."""

    path: str
    """File or glob, relative to the folder of the data; empty where the data path itself is the table."""
    format: TableFormat
    declared_format: bool
    """Whether the files' names do not tell the format."""
    header: bool
    files: int
    rows: pl.DataFrame
    """The first rows of its first files, texts as they stand there."""
    whole: bool
    """Whether these are all."""
    columns: tuple[ColumnLook, ...] = field(default=())

    def column(self, name: str) -> ColumnLook:
        """Return what was seen of a column, by its name in the file."""
        return next(column for column in self.columns if column.source == name)


def find_tables(location: Path) -> list[Table]:
    """Return the tables at a path: one for a file, those of a folder otherwise, the one with most rows first.

    Raises:
        DataError: Nothing there can be read.
    """
    if location.is_file():
        return [_looked_at([location], location.parent)]
    if not location.is_dir():
        raise DataError(f"{location}: no such file or folder; wanted a log, or a folder with a log and its side tables")
    paths = sorted(path for path in location.rglob("*") if path.is_file() and _format_of(path) is not None)
    paths = [path for path in paths if not any(part[0] in "._" for part in path.relative_to(location).parts)]
    if not paths:
        raise DataError(f"{location}: no file that can be a log; wanted CSV, TSV, JSON lines or Parquet")
    groups: dict[tuple[object, ...], list[Path]] = {}
    for path in paths[:_MOST_FILES]:
        groups.setdefault((path.parent, _format_of(path), tuple(_first(path).columns)), []).append(path)
    tables = [_looked_at(group, location, paths) for group in groups.values()]
    return sorted(tables, key=lambda table: -table.rows.height)


def _looked_at(paths: list[Path], folder: Path, others: list[Path] | None = None) -> Table:
    kind = _format_of(paths[0])
    if kind is None:
        raise DataError(f"{paths[0]}: wanted CSV, TSV, JSON lines or Parquet, plain or with .gz or .zst")
    first = _first(paths[0])
    header = kind not in _SEPARATORS or not _is_data(first.columns)
    frames: list[pl.DataFrame] = []
    rows, whole = 0, True
    for path in paths:
        if rows >= _MOST_ROWS:
            whole = False
            break
        found, complete = _read(path, kind, header, _MOST_ROWS - rows)
        frames.append(found)
        rows += found.height
        whole &= complete
    frame = pl.concat(frames, how="diagonal_relaxed")
    if frame.is_empty():
        raise DataError(f"{paths[0]}: holds no rows")
    table = Table("", kind, not _names_its_format(paths[0]), header, len(paths), frame, whole)
    columns = tuple(look_at(name, frame[name], typed=kind == "parquet") for name in frame.columns)
    return replace(table, path="" if others is None else _pattern(paths, folder, others), columns=columns)


def _pattern(paths: list[Path], folder: Path, others: list[Path]) -> str:
    """Return a glob that finds these files and no others."""
    names = [path.relative_to(folder).as_posix() for path in paths]
    if len(names) == 1:
        return names[0]
    head = _shared(names)
    tail = _shared([name[len(head) :][::-1] for name in names])[::-1]
    pattern = f"{head}*{tail}"
    if {path for path in others if path.match(pattern)} == set(paths):
        return pattern
    raise DataError(f"{folder}: {names[0]} and {len(names) - 1} more have the same columns; put them in a folder alone")


def _shared(names: list[str]) -> str:
    """Return the letters with which all names begin."""
    first, last = min(names), max(names)
    return first[: next((place for place, letter in enumerate(first) if last[place : place + 1] != letter), len(first))]


def _ending(path: Path) -> str:
    endings = [ending.lower() for ending in path.suffixes]
    if endings and endings[-1] in _PACKED:
        endings.pop()
    return endings[-1] if endings else ""


def _names_its_format(path: Path) -> bool:
    return _ending(path) in _OWN_NAMES


def _format_of(path: Path) -> TableFormat | None:
    ending = _ending(path)
    if ending not in _TEXT:
        return _BY_NAME.get(ending)
    line = next(_lines(path), b"")
    if line.lstrip().startswith(b"{"):
        return "jsonl"
    tabs, commas = line.count(b"\t"), line.count(b",")
    return None if not tabs + commas else "tsv" if tabs >= commas else "csv"


def _lines(path: Path) -> Iterator[bytes]:
    yield from _text(path, 1 << 20)[0].split(b"\n")


def _text(path: Path, most: int) -> tuple[bytes, bool]:
    """Return whole lines of the beginning of a file, and whether these are all."""
    parts: list[bytes] = []
    size = 0
    buffer = bytearray(1 << 20)
    with opened(path) as stream:
        while size < most and (got := stream.readinto(buffer)):
            parts.append(bytes(buffer[:got]))
            size += got
    text = b"".join(parts)
    if size < most:
        return text, True
    return text[: text.rfind(b"\n") + 1] or text, False


def _first(path: Path) -> pl.DataFrame:
    """Return the columns of a file as its first row has them."""
    kind = _format_of(path)
    if kind is None:
        return pl.DataFrame()
    if kind == "parquet":
        return pl.DataFrame(schema=dict.fromkeys(pq.read_schema(path).names, pl.String))
    return _parsed(b"\n".join(islice(_lines(path), 2)), kind, header=True)


def _read(path: Path, kind: TableFormat, header: bool, most_rows: int) -> tuple[pl.DataFrame, bool]:
    if kind == "parquet":
        frame = pl.scan_parquet(path).head(most_rows + 1).collect()
        return frame.head(most_rows), frame.height <= most_rows
    text, whole = _text(path, _MOST_BYTES)
    frame = _parsed(text, kind, header)
    return frame.head(most_rows), whole and frame.height <= most_rows


def _parsed(text: bytes, kind: TableFormat, header: bool) -> pl.DataFrame:
    if not text.strip():
        return pl.DataFrame()
    try:
        if kind == "jsonl":
            return pl.read_ndjson(text, infer_schema_length=None, ignore_errors=True)
        return pl.read_csv(
            text,
            separator=_SEPARATORS[kind],
            has_header=header,
            infer_schema=False,
            truncate_ragged_lines=True,
            encoding="utf8-lossy",
        )
    except pl.exceptions.PolarsError as error:
        raise DataError(f"not readable as {kind}: {error}") from None


def _is_data(names: list[str]) -> bool:
    """Whether what stands in the first line is a row: a name is no number, and stands there once."""
    numbers = [name.replace(".", "", 1).removeprefix("-").isdigit() for name in names]
    return any(numbers) and sum(numbers) * 2 >= len(names)
