"""The tables that lie at a path: which files belong together, how they are written, and rows of all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import polars as pl
import pyarrow.parquet as pq

from shortlist.contracts import DataError
from shortlist.data.reading.sources import has_known_format, visible_files
from shortlist.first_spec.columns import ColumnProfile, profile_column
from shortlist.first_spec.sample import DELIMITERS, TableFormat, TextForm, first_lines, parse_text, read_sample

_FORMAT_BY_ENDING: Final[dict[str, TableFormat]] = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet",
    ".inter": "tsv", ".user": "tsv", ".item": "tsv",
}  # fmt: skip
_TEXT_ENDINGS: Final = (".txt", ".data", ".dat", ".log")
_COMPRESSED_ENDINGS: Final = (".gz", ".zst")
_POSSIBLE_DELIMITERS: Final = ("\t", ",", ";", "|")
_MIN_SHARED_COLUMNS: Final = 0.6
"""Least share of columns that files of one table have in common."""
_MIN_EQUAL_LISTS: Final = 0.99
_VALUE_PATTERN: Final = r"^\s*[+-]?[\d.,:/T -]*\d[\d.,:/TZ+ -]*$"
"""Numbers and times, which are no names of columns."""


@dataclass(frozen=True, eq=False)
class TableSample:
    """Files of the same columns."""

    path: str
    """File or glob, relative to the folder of the data; empty where the data path itself is the table."""
    form: TextForm
    declared_format: bool
    """Whether the files' names do not tell the format."""
    files: tuple[Path, ...]
    rows: pl.DataFrame
    """Rows of all its files, texts as they stand there."""
    is_complete: bool
    """Whether these are all."""
    lacking: dict[str, int] = field(default_factory=dict)
    """Number of files that lack a column, by column."""
    columns: tuple[ColumnProfile, ...] = field(default=())
    exploded: tuple[str, ...] = ()
    """Columns whose lists became rows: one holds labels, the others what was shown."""
    separator: str = ","
    """Separator of these lists."""

    def column(self, name: str) -> ColumnProfile:
        """Return what was seen of a column, by its name in the file."""
        return next(column for column in self.columns if column.source == name)

    @property
    def bytes(self) -> int:
        """Size of its files."""
        return sum(path.stat().st_size for path in self.files)


@dataclass(frozen=True)
class _FileHeader:
    path: Path
    form: TextForm
    names: tuple[str, ...]

    @property
    def shape(self) -> str:
        """The file's name without what differs between days and parts."""
        return re.sub(r"[\d_-]+", "", self.path.name.split(".")[0].lower())


def find_tables(location: Path) -> list[TableSample]:
    """Return the tables at a path: one for a file, those of a folder otherwise, the one with most bytes first.

    Raises:
        DataError: Nothing there can be read.
    """
    if location.is_file():
        header = _read_header(location)
        if header is None:
            raise DataError(f"{location}: wanted CSV, TSV, JSON lines or Parquet, plain or with .gz or .zst")
        return [_sample_table([header], "", location)]
    if not location.is_dir():
        raise DataError(f"{location}: no such file or folder; wanted a log, or a folder with a log and its side tables")
    paths = visible_files(location)
    headers = [header for path in paths if (header := _read_header(path)) is not None]
    if not headers:
        raise DataError(f"{location}: no file that can be a log; wanted CSV, TSV, JSON lines or Parquet")
    groups: list[list[_FileHeader]] = []
    for header in headers:
        group = next((group for group in groups if _belongs_to(header, group)), None)
        if group is None:
            groups.append([header])
        else:
            group.append(header)
    tables = [_sample_table(group, _pattern_of(group, location, paths), location) for group in groups]
    tables = [table for table in tables if table.rows.height]
    if not tables:
        raise DataError(f"{location}: its files hold no rows")
    return sorted(tables, key=lambda table: -table.bytes)


def _belongs_to(header: _FileHeader, group: Sequence[_FileHeader]) -> bool:
    """Whether a file is one more of a table: it has its columns, or some columns came or went in between."""
    last = group[-1]
    if header.form != last.form:
        return False
    if set(header.names) == set(last.names):
        return header.shape == last.shape or header.form.header
    if not header.form.header:
        return False
    shared = len(set(header.names) & set(last.names)) / len({*header.names, *last.names})
    is_extended = set(header.names) < set(last.names) or set(last.names) < set(header.names)
    return shared >= _MIN_SHARED_COLUMNS and (is_extended or header.shape == last.shape)


def _sample_table(headers: Sequence[_FileHeader], path: str, location: Path) -> TableSample:
    form, files = headers[0].form, tuple(header.path for header in headers)
    rows, is_complete = read_sample(files, form)
    if rows.is_empty() and location.is_file():
        raise DataError(f"{location}: holds no rows")
    rows = _without_repeated_headers(rows)
    columns = _profile_columns(rows, form)
    exploded, separator = _find_lists_of_rows(columns)
    if exploded:
        rows = _explode(rows, exploded, separator)
        columns = _profile_columns(rows, form)
    names = list(dict.fromkeys(name for header in headers for name in header.names)) if form.header else rows.columns
    lacking = {name: sum(name not in header.names for header in headers) for name in names} if form.header else {}
    return TableSample(
        path,
        form,
        not all(has_known_format(file) for file in files),
        files,
        rows,
        is_complete,
        {name: files for name, files in lacking.items() if files},
        columns,
        exploded,
        separator,
    )


def _profile_columns(rows: pl.DataFrame, form: TextForm) -> tuple[ColumnProfile, ...]:
    return tuple(
        profile_column(name, rows[name], typed=form.format == "parquet")
        for name in rows.columns
        if name.strip() and not name.startswith("_duplicated_")
    )


def _find_lists_of_rows(columns: Sequence[ColumnProfile]) -> tuple[tuple[str, ...], str]:
    """Return the columns whose lists are the rows of an answer, and their separator; none without lists of labels.

    One holds only 0 and 1; the lists of the others are as long, row by row.
    """
    lists = [column for column in columns if column.type == "tags" and isinstance(column.values.dtype, pl.List)]
    for labels in lists:
        parts = labels.values.explode().drop_nulls().cast(pl.String).unique().to_list()
        if not parts or not set(parts) <= {"0", "1"}:
            continue
        lengths = labels.values.list.len()
        others = [
            column
            for column in lists
            if column is not labels
            and column.separator == labels.separator
            and int((column.values.list.len() == lengths).sum()) >= _MIN_EQUAL_LISTS * len(lengths)
        ]
        if others and int((lengths > 1).sum()):
            return (*(column.source for column in others), labels.source), labels.separator
    return (), ","


def _explode(rows: pl.DataFrame, names: Sequence[str], separator: str) -> pl.DataFrame:
    lists = rows.with_columns(
        pl.col(name).str.split(separator) if rows.schema[name] == pl.String else pl.col(name) for name in names
    )
    lengths = [pl.col(name).list.len() for name in names]
    return lists.filter(pl.all_horizontal(length == lengths[0] for length in lengths), lengths[0] > 0).explode(names)


def _without_repeated_headers(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows without those that repeat the names of the columns, as in files that were put together."""
    texts = [name for name, kind in rows.schema.items() if kind == pl.String() and name.strip()]
    if len(texts) < len([name for name in rows.columns if name.strip()]) or len(texts) < 2:
        return rows
    return rows.filter(~pl.all_horizontal(pl.col(name).eq_missing(pl.lit(name)) for name in texts))


def _pattern_of(headers: Sequence[_FileHeader], folder: Path, all_paths: Sequence[Path]) -> str:
    """Return the most general path that stands for these files and no others, so that later files are read too.

    Raises:
        DataError: No pattern tells them from other files.
    """
    files = {header.path for header in headers}
    names = [path.relative_to(folder).as_posix() for path in sorted(files)]
    if len(names) == 1 and len(all_paths) > 1:
        return names[0]
    for pattern in _possible_patterns(names):
        target = folder / pattern
        if pattern and not re.search(r"[*?\[]", pattern):
            found = set(visible_files(target)) if target.is_dir() else {target}
        else:
            found = set(visible_files(folder, pattern))
        if found == files:
            return pattern
    raise DataError(f"{folder}: {names[0]} and {len(names) - 1} more have the same columns; put them in a folder alone")


def _possible_patterns(names: Sequence[str]) -> list[str]:
    parents = [name.rpartition("/")[0] for name in names]
    parent = _common_prefix([f"{parent}/" for parent in parents]).rpartition("/")[0]
    folders = parent.split("/") if parent else []
    below = f"{parent}/" if parent else ""
    endings = {
        "".join(Path(name).suffixes[-2:]) if Path(name).suffix in _COMPRESSED_ENDINGS else Path(name).suffix
        for name in names
    }
    ending = endings.pop() if len(endings) == 1 else ""
    stem = _common_prefix([name.rpartition("/")[2] for name in names])
    word = re.match(r"[^\d]*", stem)
    prefix = word[0] if word else ""
    depth = "**/" if len(set(parents)) > 1 else ""
    head = _common_prefix(names)
    tail = _common_prefix([name[len(head) :][::-1] for name in names])[::-1]
    return [
        *("/".join(folders[:depth_of_folder]) for depth_of_folder in range(len(folders) + 1)),
        f"{below}{depth}*{ending}",
        f"{below}{depth}{prefix}*{ending}",
        f"{below}{depth}[0-9]*{ending}",
        f"{below}{depth}{prefix}[0-9]*{ending}",
        f"{below}{depth}{stem}*{ending}",
        f"{head}*{tail}",
        *(names if len(names) == 1 else ()),
    ]


def _common_prefix(names: Sequence[str]) -> str:
    """Return the letters with which all names begin."""
    first, last = min(names), max(names)
    return first[: next((place for place, letter in enumerate(first) if last[place : place + 1] != letter), len(first))]


def _ending(path: Path) -> str:
    endings = [ending.lower() for ending in path.suffixes]
    if endings and endings[-1] in _COMPRESSED_ENDINGS:
        endings.pop()
    return endings[-1] if endings else ""


def _read_header(path: Path) -> _FileHeader | None:
    """Return how a file is written and the names of its columns; None where it is no table.

    Raises:
        DataError: The file is empty, or its text cannot be read.
    """
    kind = _FORMAT_BY_ENDING.get(_ending(path))
    if kind is None and _ending(path) not in _TEXT_ENDINGS:
        return None
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty (0 bytes); restore it or leave it out")
    if kind == "parquet":
        try:
            return _FileHeader(path, TextForm("parquet"), tuple(pq.read_schema(path).names))
        except (OSError, pl.exceptions.PolarsError, ValueError) as error:
            raise DataError(f"{path}: truncated or not a Parquet file ({error}). Copy or write it again.") from None
    text = first_lines(path)
    if kind == "jsonl" or (kind is None and text.lstrip().startswith(b"{")):
        form = TextForm("jsonl")
        return _FileHeader(path, form, tuple(parse_text(text, form, path).columns))
    delimiter = _find_delimiter(text, DELIMITERS.get(kind or "", ""))
    if delimiter is None:
        return None
    plain = TextForm(kind or ("tsv" if delimiter == "\t" else "csv"), delimiter)
    lines = parse_text(text, plain, path, header=False)
    form = TextForm(plain.format, delimiter, _has_header(lines))
    return _FileHeader(
        path, form, tuple(str(name or "") for name in lines.row(0)) if form.header else tuple(lines.columns)
    )


def _find_delimiter(text: bytes, usual: str) -> str | None:
    """Return the character that is equally often in the first lines; that of the format where it occurs at all."""
    lines = [line for line in text.split(b"\n")[:20] if line.strip()]
    counts = {delimiter: [line.count(delimiter.encode()) for line in lines] for delimiter in _POSSIBLE_DELIMITERS}
    regular = [name for name, numbers in counts.items() if numbers and min(numbers) == max(numbers) > 0]
    if usual and (usual in regular or (usual != "," and min(counts[usual], default=0) > 0)):
        return usual
    if regular:
        return max(regular, key=lambda name: counts[name][0])
    present = [name for name, numbers in counts.items() if numbers and min(numbers) > 0]
    return usual or (max(present, key=lambda name: counts[name][0]) if present else None)


def _has_header(lines: pl.DataFrame) -> bool:
    """Whether the first line names the columns: names are no numbers and no times, and do not come again below."""
    first, below = lines.row(0), lines.slice(1)
    names = [name or "" for name in first]
    is_value = [re.match(_VALUE_PATTERN, name) is not None for name in names]
    if [name for name in names if name] in (
        [str(n) for n in range(len(names))],
        [str(n) for n in range(1, len(names) + 1)],
    ):
        return len(below) > 0 and not (lines[:, 0] == first[0]).sum() > 1
    if not any(is_value):
        return not _repeats_below(first, below)
    named = [
        column
        for column, name, value in zip(lines.columns, names, is_value, strict=True)
        if name and not value and below[column].drop_nulls().str.contains(_VALUE_PATTERN).all() and below.height
    ]
    return bool(named)


def _repeats_below(first: tuple[object, ...], below: pl.DataFrame) -> bool:
    """Whether the values of the first line come again in their columns, but not together as a repeated header does."""
    repeated = [column for column, value in zip(below.columns, first, strict=True)
                if value is not None and (below[column] == value).any()]  # fmt: skip
    together = below.filter(
        pl.all_horizontal(pl.col(c).eq_missing(pl.lit(v)) for c, v in zip(below.columns, first, strict=True))
    )
    return len(repeated) * 2 >= len(first) and together.is_empty()
