"""Groups of a log's files, which pods of their own read."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from shortlist.contracts import DataError, ShortlistError
from shortlist.data.reading.blocks import FirstFile, count_file_rows, describe_first_file, read_blocks
from shortlist.data.reading.layout import FileLayout
from shortlist.data.reading.log_rows import log_layout
from shortlist.data.reading.sources import InputFile, log_files, side_files
from shortlist.data.reading.typed_rows import TypedRows
from shortlist.data.side_tables.ingest import find_model_files
from shortlist.spec.data import Data, FileSource, RowClock
from shortlist.spec.runtime import Runtime
from shortlist.storage.groups import neighbours


class FileGroup(BaseModel):
    """Some files of a log, and what the steps that read them must know of the others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    """Number of the group, from 0, in the order of the files."""
    groups: int
    """How many there are."""
    files: tuple[str, ...] = ()
    """Names of the files, in order; empty: all files of the log, which are one group."""
    first: FirstFile | None = None
    """The log's first file; None where this group has it."""
    widths: dict[str, int] = {}
    """Numbers in the vectors of each column."""
    first_row: int = 0
    """Number of the first row; only where the rows' order is the clock, and 0 elsewhere."""
    rows: int | None = None
    """Rows of the files; only where the rows' order is the clock."""
    total_rows: int = 0
    """Rows of the log; only where the rows' order is the clock."""

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the group that a pipeline's parameter holds.

        Raises:
            ShortlistError: It holds something else.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ShortlistError(f"group of files: {error.errors()[0]['msg']} in {text[:200]!r}") from None

    @property
    def reads_side_tables(self) -> bool:
        """Whether whoever reads the files reads the side tables too."""
        return self.number == 0

    def files_of(self, source: FileSource, location: Path) -> list[InputFile]:
        """Return the group's files.

        Raises:
            DataError: As `log_files`; or one of the files is gone.
        """
        found = log_files(source, location)
        if not self.files:
            return found
        there = {file.name: file for file in found}
        if gone := [name for name in self.files if name not in there]:
            raise DataError(f"{gone[0]}: the file was there when this run began and is gone; restore it and run again")
        return [there[name] for name in self.files]

    def needed(self, data: Data, location: Path) -> set[Path]:
        """Return every file that whoever reads the group opens."""
        if not isinstance(data.source, FileSource):
            return set()
        sides = data.side_tables if self.reads_side_tables else ()
        files = [
            *self.files_of(data.source, location),
            *(file for side in sides for file in side_files(side, location)),
        ]
        models = find_model_files(data, location) if self.reads_side_tables else []
        return {*(file.path for file in files), *models}


def partition_files(data: Data, location: Path, runtime: Runtime, most: int) -> list[FileGroup]:
    """Share out the files of a log into groups of neighbours of about as many bytes each.

    One group takes the whole log where a row cannot be read without all before it: in a generated log, where
    `data.rules.sorted` compares each row with those of earlier files, and where the rows' order is the clock of a log
    with lists that become rows.

    Args:
        data: The spec's data section.
        location: As for `ingest`.
        runtime: Bounds the rows held at once.
        most: Groups wanted; there are fewer when there are fewer files.

    Raises:
        DataError: The files are missing, or the first one is not what the spec declares; where the rows' order is the
            clock also: a file cannot be read.
    """
    by_order = isinstance(data.clock, RowClock)
    alone = [FileGroup(number=0, groups=1)]
    if not isinstance(data.source, FileSource) or data.rules.sorted or (by_order and data.explode is not None):
        return alone
    layout, files = log_layout(data, data.source), log_files(data.source, location)
    groups = neighbours(files, [file.path.stat().st_size for file in files], most)
    widths = _widths(data, layout, files[0], runtime) if len(groups) > 1 else None
    if widths is None:
        return alone
    first = describe_first_file(files, layout)
    rows = dict(zip([file.name for file in files], count_file_rows(files, layout), strict=True)) if by_order else {}
    return _described(groups, first, widths, rows)


def needed_to_partition(data: Data, location: Path) -> set[Path]:
    """Return every file that `partition_files` opens: the first one, or all where the rows' order is the clock."""
    if not isinstance(data.source, FileSource):
        return set()
    files = log_files(data.source, location)
    return {file.path for file in (files if isinstance(data.clock, RowClock) else files[:1])}


def _widths(data: Data, layout: FileLayout, file: InputFile, runtime: Runtime) -> Mapping[str, int] | None:
    """Return the numbers in the vectors of each column; None when the log's first file does not tell all of them."""
    wanted = {column.name for column in data.columns if column.type == "vector"}
    typed = TypedRows(layout)
    for one, block in read_blocks([file], layout, runtime.chunk_rows) if wanted else ():
        typed.convert_block(one, block)
        if wanted == typed.widths.keys():
            break
    return typed.widths if wanted == typed.widths.keys() else None


def _described(
    groups: list[list[InputFile]], first: FirstFile, widths: Mapping[str, int], rows: Mapping[str, int]
) -> list[FileGroup]:
    own = [sum(rows.get(file.name, 0) for file in group) for group in groups]
    before = [0, *accumulate(own)]
    return [
        FileGroup(
            number=number,
            groups=len(groups),
            files=tuple(file.name for file in group),
            first=first if number else None,
            widths=dict(widths),
            first_row=before[number],
            rows=own[number] if rows else None,
            total_rows=before[-1],
        )
        for number, group in enumerate(groups)
    ]
