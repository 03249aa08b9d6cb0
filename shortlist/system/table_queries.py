"""Queries that a spec declares over one table: SQL with one number as its answer, and no access to anything else."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from math import isfinite
from threading import Timer
from typing import TYPE_CHECKING, Any, Final

from shortlist.contracts import ShortlistError

if TYPE_CHECKING:
    import duckdb
    import polars as pl

_SECONDS: Final = 60
"""Longest duration of a query."""
_OPTIONS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "enable_external_access": "false",  # no files, no network, no other database, no extensions
    "python_enable_replacements": "false",  # no variables of this process
    "lock_configuration": "true",
    "memory_limit": "2GB",
}
_INTEGER_TYPES: Final = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
_NUMBER_TYPES: Final = (*_INTEGER_TYPES, *(f"U{name}" for name in _INTEGER_TYPES), "FLOAT", "DOUBLE", "DECIMAL")
"""Beginnings of DuckDB's names of types of numbers."""


class QueryError(ShortlistError):
    """A query that cannot be run, or does not give one number."""


def check_query(sql: str, table: str, types: Mapping[str, pl.DataType]) -> None:
    """Check a query against the columns of its table.

    Args:
        sql: One SELECT statement, in DuckDB's SQL.
        table: Name of the table.
        types: Types of the table's columns.

    Raises:
        QueryError: It is no SELECT, reads something else than the table's columns, or gives something else than one
            number.
    """
    import polars as pl

    _, types_of_answer = _run(sql, table, pl.DataFrame(schema=dict(types)))
    if len(types_of_answer) != 1 or not types_of_answer[0].startswith(_NUMBER_TYPES):
        raise QueryError(f"the query gives {' and '.join(types_of_answer)}; wanted one column with a number")


def query_number(sql: str, table: str, rows: pl.DataFrame) -> float:
    """Return the number that a query gives.

    Raises:
        QueryError: As for `check_query`; or it gives no row, several, NULL or no finite number, or takes too long.

    >>> import polars as pl
    >>> query_number("SELECT avg(score) FROM test_rows", "test_rows", pl.DataFrame({"score": [0.5, 0.25]}))
    0.375
    """
    answer, _ = _run(sql, table, rows)
    if len(answer) != 1:
        raise QueryError(f"the query gives {'more than one row' if answer else 'no row'}; wanted one")
    value = answer[0][0]
    if not isinstance(value, int | float | Decimal) or not isfinite(value):
        raise QueryError(f"the query gives {'NULL' if value is None else value}; wanted a number")
    return float(value)


def _run(sql: str, table: str, rows: pl.DataFrame) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Return the first two rows of a query's answer, and the types of its columns."""
    import duckdb  # only specs with queries need it
    import polars as pl

    with duckdb.connect(":memory:", config=_OPTIONS) as connection:
        connection.register(table, rows.to_arrow(compat_level=pl.CompatLevel.oldest()))
        timer = Timer(_SECONDS, connection.interrupt)
        timer.start()
        try:
            cursor = connection.execute(_select_statement(sql, connection))
            types = [str(column[1]) for column in cursor.description or ()]
            return cursor.fetchmany(2), types
        except duckdb.InterruptException:
            raise QueryError(f"the query took more than {_SECONDS} s") from None
        except duckdb.Error as error:
            names = f"; {table} has {', '.join(rows.columns)}" if isinstance(error, duckdb.BinderException) else ""
            raise QueryError(f"{str(error).partition(chr(10))[0]}{names}") from None
        finally:
            timer.cancel()


def _select_statement(sql: str, connection: duckdb.DuckDBPyConnection) -> duckdb.Statement:
    import duckdb

    statements = connection.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        kinds = ", ".join(statement.type.name for statement in statements) or "nothing"
        raise QueryError(f"the query is {kinds}; wanted one SELECT")
    return statements[0]
