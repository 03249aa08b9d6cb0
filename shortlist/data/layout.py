"""What a spec says about the files of one table, and what a reader hands on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import polars as pl

from shortlist.contracts import DataError, did_you_mean
from shortlist.spec.data import Column, EventClock
from shortlist.spec.log_shape import Explode

_TYPED: dict[str, pl.DataType] = {"integer": pl.Int64(), "number": pl.Float64()}
_MOST_UNDECLARED = 200
"""Undeclared columns that a message names: whoever declares them wants all at once."""


@dataclass(frozen=True)
class Layout:
    """The columns of a table and how they stand in its files."""

    table: str
    """What messages call the table: `the log`, `side table 'users'`."""
    columns: tuple[Column, ...]
    clock: EventClock | None
    """The clock, when its column is to be read too."""
    header: bool
    null_values: tuple[str, ...]
    undeclared: Literal["refuse", "ignore"]
    explode: Explode | None = None
    """Columns whose lists become rows; read as text or lists."""

    @property
    def sources(self) -> list[str]:
        """Names in the file of all columns to read, each once."""
        clock = [self.clock.column] if self.clock is not None else []
        return list(dict.fromkeys([*(column.source_name for column in self.columns), *clock]))

    @property
    def text_types(self) -> dict[str, pl.DataType]:
        """The type that text of each column is parsed into at once; everything else is read as it stands."""
        types: dict[str, pl.DataType] = {}
        for column in self.columns:
            wanted = _TYPED.get(column.type, pl.String())
            types[column.source_name] = wanted if types.get(column.source_name, wanted) == wanted else pl.String()
        if self.clock is not None:
            types[self.clock.column] = pl.String() if self.clock.is_text else pl.Float64()
        return types | dict.fromkeys(self.exploded, pl.String())

    @property
    def exploded(self) -> dict[str, list[Column]]:
        """Name in the file of each column of lists that become rows, and the columns that its elements hold."""
        found: dict[str, list[Column]] = {}
        for name in self.explode.columns if self.explode is not None else ():
            column = next(column for column in self.columns if column.name == name)
            found.setdefault(column.source_name, []).append(column)
        return found

    @property
    def row_columns(self) -> tuple[Column, ...]:
        """The columns as blocks hold them: where one text holds several, each is cut out under a name of its own."""
        if self.explode is None or self.explode.within is None:
            return self.columns
        own = {name: cut_name(name, self) for name in self.explode.columns}
        return tuple(
            column.model_copy(update={"source": own[column.name]}) if column.name in own else column
            for column in self.columns
        )

    @property
    def hexadecimal(self) -> set[str]:
        """Names in the file of the columns that hold hexadecimal numbers and are read as nothing else."""
        other = {column.source_name for column in self.columns if column.type != "hex"}
        clock = {self.clock.column} if self.clock is not None else set()
        return {column.source_name for column in self.columns} - other - clock - set(self.exploded)

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

    def check(self, found: list[str], file: str) -> None:
        """Compare the columns of a file with the declared ones.

        Raises:
            DataError: A name occurs twice, a declared column is missing, or an undeclared one must be refused.
        """
        counts = Counter(found)
        problems = [f"column '{name}' occurs {n} times in the header" for name, n in counts.items() if n > 1]
        for name in self.sources:
            if name not in found:
                close = did_you_mean(name, set(found) - set(self.sources))
                problems.append(f"declared column '{name}' is missing{close} (the file has {_listed(found)})")
        extra = [name for name in found if name not in self.sources]
        if extra and self.undeclared == "refuse":
            problems.append(
                f"column {_listed(extra, _MOST_UNDECLARED)} is not declared; declare it, or set"
                " rules.undeclared_columns: ignore"
            )
        if problems:
            raise DataError(f"{file} ({self.table}): " + "; ".join(problems))


@dataclass(frozen=True)
class Block:
    """Some rows of a file as they stand there, in order."""

    columns: pl.DataFrame
    """Raw values under the file's names, not yet of the declared types."""
    lines: pl.Series
    """Int64: line on which each row begins (row number in formats without lines), counted from 1."""
    numbers: pl.Series
    """Int64: row number of each row within the block, counted from 0, broken rows included."""
    rows: int
    """Rows of the block, broken ones included."""
    broken: pl.DataFrame
    """Rows that could not be taken apart: source_line, rule, detail."""
    position: int
    """Bytes of the file on disk read so far."""


def cut_name(name: str, layout: Layout) -> str:
    """Return the name in blocks of a column that is cut out of a text which holds several."""
    source = next(column.source_name for column in layout.columns if column.name == name)
    return f"{source}:{name}"


def _listed(names: list[str], most: int = 8) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
