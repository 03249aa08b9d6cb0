"""What a spec says about the files of one table, and what a reader hands on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import polars as pl

from shortlist.contracts import DataError, did_you_mean
from shortlist.spec.data import Column, EventClock

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
            types[self.clock.column] = pl.String() if self.clock.unit == "iso" else pl.Float64()
        return types

    @property
    def hexadecimal(self) -> set[str]:
        """Names in the file of the columns that hold hexadecimal numbers and are read as nothing else."""
        other = {column.source_name for column in self.columns if column.type != "hex"}
        clock = {self.clock.column} if self.clock is not None else set()
        return {column.source_name for column in self.columns} - other - clock

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


def _listed(names: list[str], most: int = 8) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
