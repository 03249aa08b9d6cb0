"""The declared layout of one table's files, and the blocks of rows that readers return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from shortlist.contracts import DataError, did_you_mean
from shortlist.spec.data import Column, EventClock
from shortlist.spec.log_shape import Explode

_PARSED_TYPES: dict[str, pl.DataType] = {"integer": pl.Int64(), "number": pl.Float64()}
_MAX_UNDECLARED_SHOWN = 200
"""Undeclared columns that a message names, so that all can be declared at once."""
NAMELESS = "nameless column "
"""Beginning of the names that readers give to columns without a name, such as the index that pandas writes; they are
passed over."""


@dataclass(frozen=True)
class FileLayout:
    """The declared columns of a table and their notation in its files."""

    table: str
    """Name of the table in messages: `the log`, `side table 'users'`."""
    columns: tuple[Column, ...]
    clock: EventClock | None
    """The clock, if its column is read too."""
    header: bool
    null_values: tuple[str, ...]
    undeclared: Literal["refuse", "ignore"]
    explode: Explode | None = None
    """Columns whose lists become rows; read as text or lists."""
    delimiter: str | None = None
    """Character between the fields of a CSV or TSV file; None: that of the format."""
    keys: frozenset[str] = frozenset()
    """Declared names of keys, which must be written in one way in all files."""
    required: frozenset[str] = frozenset()
    """Declared names of columns that every file must have; of the others, a file may lack some."""

    @property
    def sources(self) -> list[str]:
        """Names in the file of all columns to read, each once."""
        clock = [self.clock.column] if self.clock is not None else []
        return list(dict.fromkeys([*(column.source_name for column in self.columns), *clock]))

    @property
    def text_types(self) -> dict[str, pl.DataType]:
        """Type into which the text of each column is parsed directly; String for columns that are converted later."""
        types: dict[str, pl.DataType] = {}
        for column in self.columns:
            parsed_type = pl.String() if column.decimal_comma else _PARSED_TYPES.get(column.type, pl.String())
            types[column.source_name] = (
                parsed_type if types.get(column.source_name, parsed_type) == parsed_type else pl.String()
            )
        if self.clock is not None:
            types[self.clock.column] = pl.String() if self.clock.is_text else pl.Float64()
        # The text of a key is needed to find leading zeros.
        keys = [column.source_name for column in self.columns if column.name in self.keys and column.type == "integer"]
        return types | dict.fromkeys((*keys, *self.exploded), pl.String())

    @property
    def optional(self) -> frozenset[str]:
        """Names in the file of the columns that some files may lack."""
        clock = {self.clock.column} if self.clock is not None else set()
        required = {column.source_name for column in self.columns if column.name in self.required}
        return frozenset(self.sources) - clock - required - set(self.exploded)

    @property
    def exploded(self) -> dict[str, list[Column]]:
        """Name in the file of each column of lists that become rows -> the columns in its elements."""
        columns_by_source: dict[str, list[Column]] = {}
        for name in self.explode.columns if self.explode is not None else ():
            column = next(column for column in self.columns if column.name == name)
            columns_by_source.setdefault(column.source_name, []).append(column)
        return columns_by_source

    @property
    def row_columns(self) -> tuple[Column, ...]:
        """The columns of exploded blocks, in which each column of a shared text has its own name."""
        if self.explode is None or self.explode.within is None:
            return self.columns
        source_by_name = {name: element_column_name(name, self) for name in self.explode.columns}
        return tuple(
            column.model_copy(update={"source": source_by_name[column.name]})
            if column.name in source_by_name
            else column
            for column in self.columns
        )

    @property
    def hexadecimal(self) -> set[str]:
        """Names in the file of the columns that are read only as hexadecimal numbers."""
        other_sources = {column.source_name for column in self.columns if column.type != "hex"}
        clock = {self.clock.column} if self.clock is not None else set()
        return {column.source_name for column in self.columns} - other_sources - clock - set(self.exploded)

    def names_by_position(self, fields: int, file: str) -> list[str]:
        """Return the names of the fields of a file without a header.

        Raises:
            DataError: The spec declares another number of columns, or the clock has no position.
        """
        names = [column.source_name for column in self.columns]
        if self.clock is not None:
            if not self.clock.column.isdecimal():
                raise DataError(
                    f"{file}: the file has no header, so clock.column must be a position counted from 0,"
                    f" got '{self.clock.column}'"
                )
            names.insert(int(self.clock.column), self.clock.column)
        if fields != len(names):
            raise DataError(
                f"{file}: the first row has {fields} fields, the spec declares {len(names)} for {self.table}."
                " Declare every column in file order, and check the format (separator)."
            )
        return names

    def restrict_to(self, fields: Collection[str]) -> FileLayout:
        """Return the layout of a file that lacks declared columns: only the columns that it has."""
        return replace(self, columns=tuple(column for column in self.columns if column.source_name in fields))

    def check_fields(self, fields: list[str], file: str, optional: Collection[str] = ()) -> None:
        """Compare the columns of a file with the declared ones.

        Args:
            fields: Names of the file's columns.
            file: Its name in messages.
            optional: Declared columns that it may lack, by their names in files.

        Raises:
            DataError: A name occurs twice, a declared column is missing, or an undeclared column is refused.
        """
        counts = Counter(name for name in fields if not name.startswith(NAMELESS))
        problems = [f"column '{name}' occurs {n} times in the header" for name, n in counts.items() if n > 1]
        for name in self.sources:
            if name not in fields and name not in optional:
                suggestion = did_you_mean(name, set(fields) - set(self.sources))
                problems.append(
                    f"declared column '{name}' is missing{suggestion} (the file has {_quote_names(fields)})"
                )
        undeclared_fields = [name for name in counts if name not in self.sources]
        if undeclared_fields and self.undeclared == "refuse":
            problems.append(
                f"column {_quote_names(undeclared_fields, _MAX_UNDECLARED_SHOWN)} is not declared; declare it, or set"
                " data.rules.undeclared_columns: ignore"
            )
        if problems:
            raise DataError(f"{file} ({self.table}): " + "; ".join(problems))


@dataclass(frozen=True)
class RowBlock:
    """Consecutive rows of a file with their raw values."""

    columns: pl.DataFrame
    """Raw values under the file's names, not yet of the declared types."""
    lines: pl.Series
    """Int64: line on which each row begins (row number in formats without lines), counted from 1."""
    numbers: pl.Series
    """Int64: number of each row within the block, counted from 0, including broken rows."""
    rows: int
    """Rows of the block, including broken ones."""
    broken: pl.DataFrame
    """Rows that could not be parsed: source_line, rule, detail."""
    position: int
    """Bytes of the file on disk read so far."""


def element_column_name(name: str, layout: FileLayout) -> str:
    """Return the name in exploded blocks of a column that is part of a shared text."""
    source = next(column.source_name for column in layout.columns if column.name == name)
    return f"{source}:{name}"


def _quote_names(names: list[str], max_names: int = 8) -> str:
    quoted = ", ".join(f"'{name}'" for name in names[:max_names])
    return quoted if len(names) <= max_names else f"{quoted} and {len(names) - max_names} more"
