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
from shortlist.data.reading.text.streams import open_decompressed
from shortlist.first_spec.columns import ColumnProfile, profile_column

TableFormat = Literal["csv", "tsv", "jsonl", "parquet"]

_FORMAT_BY_ENDING: Final[dict[str, TableFormat]] = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet",
    ".inter": "tsv", ".user": "tsv", ".item": "tsv",
}  # fmt: skip
_KNOWN_ENDINGS: Final = frozenset((".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"))
"""Endings by which a run knows the format without being told."""
_TEXT_ENDINGS: Final = (".txt", ".data", ".dat", ".log")
_COMPRESSED_ENDINGS: Final = (".gz", ".zst")
_SEPARATORS: Final[dict[str, str]] = {"csv": ",", "tsv": "\t"}
_MAX_ROWS: Final = 300_000
_MAX_BYTES: Final = 64 << 20
_MAX_FILES: Final = 400


@dataclass(frozen=True, eq=False)
class TableSample:
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
    is_complete: bool
    """Whether these are all."""
    columns: tuple[ColumnProfile, ...] = field(default=())

    def column(self, name: str) -> ColumnProfile:
        """Return what was seen of a column, by its name in the file."""
        return next(column for column in self.columns if column.source == name)


def find_tables(location: Path) -> list[TableSample]:
    """Return the tables at a path: one for a file, those of a folder otherwise, the one with most rows first.

    Raises:
        DataError: Nothing there can be read.
    """
    if location.is_file():
        return [_sample_table([location], location.parent)]
    if not location.is_dir():
        raise DataError(f"{location}: no such file or folder; wanted a log, or a folder with a log and its side tables")
    paths = sorted(path for path in location.rglob("*") if path.is_file() and _detect_format(path) is not None)
    paths = [path for path in paths if not any(part[0] in "._" for part in path.relative_to(location).parts)]
    if not paths:
        raise DataError(f"{location}: no file that can be a log; wanted CSV, TSV, JSON lines or Parquet")
    groups: dict[tuple[object, ...], list[Path]] = {}
    for path in paths[:_MAX_FILES]:
        groups.setdefault((path.parent, _detect_format(path), tuple(_read_header(path).columns)), []).append(path)
    tables = [_sample_table(group, location, paths) for group in groups.values()]
    return sorted(tables, key=lambda table: -table.rows.height)


def _sample_table(paths: list[Path], folder: Path, all_paths: list[Path] | None = None) -> TableSample:
    kind = _detect_format(paths[0])
    if kind is None:
        raise DataError(f"{paths[0]}: wanted CSV, TSV, JSON lines or Parquet, plain or with .gz or .zst")
    first = _read_header(paths[0])
    header = kind not in _SEPARATORS or not _is_data_row(first.columns)
    frames: list[pl.DataFrame] = []
    rows, is_complete = 0, True
    for path in paths:
        if rows >= _MAX_ROWS:
            is_complete = False
            break
        file_rows, file_is_complete = _read_rows(path, kind, header, _MAX_ROWS - rows)
        frames.append(file_rows)
        rows += file_rows.height
        is_complete &= file_is_complete
    frame = pl.concat(frames, how="diagonal_relaxed")
    if frame.is_empty():
        raise DataError(f"{paths[0]}: holds no rows")
    table = TableSample("", kind, not _has_known_ending(paths[0]), header, len(paths), frame, is_complete)
    columns = tuple(profile_column(name, frame[name], typed=kind == "parquet") for name in frame.columns)
    return replace(table, path="" if all_paths is None else _common_pattern(paths, folder, all_paths), columns=columns)


def _common_pattern(paths: list[Path], folder: Path, all_paths: list[Path]) -> str:
    """Return a glob that finds these files and no others."""
    names = [path.relative_to(folder).as_posix() for path in paths]
    if len(names) == 1:
        return names[0]
    head = _common_prefix(names)
    tail = _common_prefix([name[len(head) :][::-1] for name in names])[::-1]
    pattern = f"{head}*{tail}"
    if {path for path in all_paths if path.match(pattern)} == set(paths):
        return pattern
    raise DataError(f"{folder}: {names[0]} and {len(names) - 1} more have the same columns; put them in a folder alone")


def _common_prefix(names: list[str]) -> str:
    """Return the letters with which all names begin."""
    first, last = min(names), max(names)
    return first[: next((place for place, letter in enumerate(first) if last[place : place + 1] != letter), len(first))]


def _ending(path: Path) -> str:
    endings = [ending.lower() for ending in path.suffixes]
    if endings and endings[-1] in _COMPRESSED_ENDINGS:
        endings.pop()
    return endings[-1] if endings else ""


def _has_known_ending(path: Path) -> bool:
    return _ending(path) in _KNOWN_ENDINGS


def _detect_format(path: Path) -> TableFormat | None:
    ending = _ending(path)
    if ending not in _TEXT_ENDINGS:
        return _FORMAT_BY_ENDING.get(ending)
    line = next(_first_lines(path), b"")
    if line.lstrip().startswith(b"{"):
        return "jsonl"
    tabs, commas = line.count(b"\t"), line.count(b",")
    return None if not tabs + commas else "tsv" if tabs >= commas else "csv"


def _first_lines(path: Path) -> Iterator[bytes]:
    yield from _read_text(path, 1 << 20)[0].split(b"\n")


def _read_text(path: Path, max_bytes: int) -> tuple[bytes, bool]:
    """Return whole lines of the beginning of a file, and whether these are all."""
    parts: list[bytes] = []
    size = 0
    buffer = bytearray(1 << 20)
    with open_decompressed(path) as stream:
        while size < max_bytes and (byte_count := stream.readinto(buffer)):
            parts.append(bytes(buffer[:byte_count]))
            size += byte_count
    text = b"".join(parts)
    if size < max_bytes:
        return text, True
    return text[: text.rfind(b"\n") + 1] or text, False


def _read_header(path: Path) -> pl.DataFrame:
    """Return the columns of a file as its first row has them."""
    kind = _detect_format(path)
    if kind is None:
        return pl.DataFrame()
    if kind == "parquet":
        return pl.DataFrame(schema=dict.fromkeys(pq.read_schema(path).names, pl.String))
    return _parse_text(b"\n".join(islice(_first_lines(path), 2)), kind, header=True)


def _read_rows(path: Path, kind: TableFormat, header: bool, max_rows: int) -> tuple[pl.DataFrame, bool]:
    if kind == "parquet":
        frame = pl.scan_parquet(path).head(max_rows + 1).collect()
        return frame.head(max_rows), frame.height <= max_rows
    text, is_complete = _read_text(path, _MAX_BYTES)
    frame = _parse_text(text, kind, header)
    return frame.head(max_rows), is_complete and frame.height <= max_rows


def _parse_text(text: bytes, kind: TableFormat, header: bool) -> pl.DataFrame:
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


def _is_data_row(names: list[str]) -> bool:
    """Whether what stands in the first line is a row: a name is no number, and stands there once."""
    numbers = [name.replace(".", "", 1).removeprefix("-").isdigit() for name in names]
    return any(numbers) and sum(numbers) * 2 >= len(names)
