"""Find the files of a log and its side tables from a spec and a data path."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from shortlist.contracts import DataError, did_you_mean
from shortlist.spec.data import Column, DeltaSource, FileFormat, FileSource, LogFiles, SideTable

if TYPE_CHECKING:
    from deltalake import DeltaTable

Format = Literal["csv", "tsv", "jsonl", "parquet", "npz"]

_FORMATS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".npz": "npz",
}
_HIDDEN_NAME = re.compile(r"(^|/)(_|\.(?!\.?/))")
_COMPRESSED_SUFFIXES = (".gz", ".zst")
_READABLE_FEATURES: Final = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening"}
"""Features of a table whose files hold all its rows under the names of their columns."""


@dataclass(frozen=True)
class StoredColumns:
    """Columns of a table of many Parquet files."""

    schema: pa.Schema
    """Schema of the table: a column that a file lacks is null in its rows, or a partition's."""
    partition: Mapping[str, pa.Scalar]
    """Value of the file's rows in the columns by which the table is partitioned."""


@dataclass(frozen=True)
class InputFile:
    """A file to read, with its format."""

    path: Path
    name: str
    """Path relative to the data folder, as in messages and `source_file`."""
    format: Format
    stored: StoredColumns | None = None
    """Columns of the table that a Parquet file is part of; None for a file of its own."""


def log_files(source: LogFiles, location: Path) -> list[InputFile]:
    """Return the files of the log in name order; those of a Delta table in the order of their commits.

    Args:
        source: The spec's source.
        location: Data path of the run: a file or a glob is the log itself, a folder holds `source.path`.

    Raises:
        DataError: There is no file, a file is empty, or its format is unknown.
    """
    if isinstance(source, DeltaSource):
        return _delta_files(source, location)
    assert isinstance(source, FileSource)
    folder, pattern = (location, source.path) if location.is_dir() else _split_location(location)
    files = _find_files(folder, pattern, source.format)
    if any(file.format == "npz" for file in files):
        raise DataError(f"{folder / pattern}: a NumPy archive can be a side table, not the log")
    return files


def side_files(table: SideTable, location: Path) -> list[InputFile]:
    """Return the files of a side table in name order; raises like `log_files`."""
    folder = location if location.is_dir() else _split_location(location)[0]
    return _find_files(folder, table.path, table.format)


def embedding_model(column: Column, location: Path) -> Path:
    """Return the file of the model that computes a column.

    Raises:
        DataError: The file is missing.
    """
    assert column.embedding is not None
    folder = location if location.is_dir() else _split_location(location)[0]
    path = folder / column.embedding.model
    if not path.is_file():
        raise DataError(f"{path}: no such file{_suggest_name(path)}; wanted the model of column '{column.name}'")
    return path


def visible_files(folder: Path, pattern: str = "") -> list[Path]:
    """Return the files below a folder that a pattern matches, sorted by name; without a pattern, all.

    Files and folders whose names begin with '.' or '_' are passed over.
    """
    return _visible_files(folder, folder.glob(pattern) if pattern else folder.rglob("*"))


def has_known_format(path: Path) -> bool:
    """Whether a file's name says that it holds a table."""
    try:
        _detect_format(path)
    except DataError:
        return False
    return True


def _delta_files(source: DeltaSource, location: Path) -> list[InputFile]:
    """Return the files of a version of a table in the order of their commits.

    Args:
        source: The spec's source.
        location: Data path of the run, a folder.

    Raises:
        DataError: There is no table or no such version, it has no rows, or its files do not hold its rows as they are.
    """
    folder = location / source.path
    table = _open_delta_table(folder, source.version)
    schema = pa.schema(table.schema().to_arrow())
    files = pa.table(table.get_add_actions(flatten=True)).sort_by(
        [("modification_time", "ascending"), ("path", "ascending")]
    )
    if not files.num_rows:
        raise DataError(f"{folder}: version {table.version()} of the table has no rows")
    return [
        InputFile(folder / action["path"], action["path"], "parquet", StoredColumns(schema, _partition(action, schema)))
        for action in files.to_pylist()
    ]


def _open_delta_table(folder: Path, version: int | None) -> DeltaTable:
    from deltalake import DeltaTable  # it takes 0.3 s to load
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        table = DeltaTable(str(folder))
    except TableNotFoundError:
        raise DataError(f"{folder}: no Delta table (there is no folder _delta_log); check data.source.path") from None
    except (DeltaError, OSError) as error:
        raise DataError(f"{folder}: the Delta table cannot be read ({error}); restore its _delta_log") from None
    features = set(table.protocol().reader_features or ()) - _READABLE_FEATURES
    if features:
        raise DataError(
            f"{folder}: the table uses {', '.join(sorted(features))}, and its files do not hold its rows as they are;"
            " write a copy of the table without it"
        )
    if version is None:
        return table
    try:
        return DeltaTable(str(folder), version=version)
    except (DeltaError, OSError):
        raise DataError(
            f"{folder}: version {version} of the table cannot be read; the newest is {table.version()}, and old ones"
            " expire. Declare a version that is there, or null"
        ) from None


def _partition(action: dict[str, Any], schema: pa.Schema) -> dict[str, pa.Scalar]:
    values = {name.removeprefix("partition."): value for name, value in action.items() if name.startswith("partition.")}
    return {name: pa.scalar(value, schema.field(name).type) for name, value in values.items()}


def _find_files(folder: Path, pattern: str, declared: FileFormat) -> list[InputFile]:
    target = folder / pattern
    if target.is_file():
        paths = [target]
    elif target.is_dir():
        paths = _visible_files(target, target.rglob("*"))
    elif _has_wildcard(pattern) and folder.is_dir():
        paths = _visible_files(folder, folder.glob(pattern))
    else:
        raise DataError(f"{target}: no such file or folder{_suggest_name(target)}")
    if not paths:
        raise DataError(f"{target}: no file matches (names that begin with '.' or '_' are passed over)")
    return [_to_input_file(path, folder, declared) for path in paths]


def _visible_files(folder: Path, paths: Iterable[Path]) -> list[Path]:
    names = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    return [names[name] for name in sorted(names) if not _HIDDEN_NAME.search(name)]


def _to_input_file(path: Path, folder: Path, declared: FileFormat) -> InputFile:
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty (0 bytes); restore it or leave it out")
    name = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
    return InputFile(path, name, _detect_format(path) if declared == "auto" else declared)


def _detect_format(path: Path) -> Format:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED_SUFFIXES:
        suffixes.pop()
    if not suffixes or suffixes[-1] not in _FORMATS:
        suffix = suffixes[-1] if suffixes else path.name
        raise DataError(
            f"{path}: unknown format '{suffix}'; wanted one of {', '.join(_FORMATS)}"
            f" (plain or with {' or '.join(_COMPRESSED_SUFFIXES)}). Declare `format`, or narrow `path` with a glob."
        )
    return _FORMATS[suffixes[-1]]


def _split_location(location: Path) -> tuple[Path, str]:
    """Return a file's folder and name, or the folder before the first wildcard and the pattern."""
    if location.is_file():
        return location.parent, location.name
    parts = location.parts
    first = next((i for i, part in enumerate(parts) if _has_wildcard(part)), len(parts) - 1)
    return Path(*parts[:first]), str(Path(*parts[first:]))


def _has_wildcard(text: str) -> bool:
    return any(character in text for character in "*?[")


def _suggest_name(target: Path) -> str:
    return did_you_mean(target.name, [path.name for path in target.parent.iterdir()]) if target.parent.is_dir() else ""
