"""Queries of a spec read one table, and nothing else of the machine."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from shortlist.system import table_queries
from shortlist.system.table_queries import QueryError, check_query, query_number

ROWS = pl.DataFrame({"device": ["mobile", "desk"], "score": [0.5, 0.25]})


def test_a_query_gives_one_number() -> None:
    sql = "WITH mobile AS (SELECT score FROM t WHERE device = 'mobile') SELECT sum(score) * 2 FROM mobile"
    check_query(sql, "t", ROWS.schema)
    assert query_number(sql, "t", ROWS) == 1.0


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("SELECT count(*) FROM read_text('{file}')", "Cannot access file"),
        ("SELECT count(*) FROM '{file}'", "does not exist"),
        ("SELECT count(*) FROM glob('{file}')", "Cannot access file"),
        ("COPY t TO '{file}'", "the query is COPY; wanted one SELECT"),
        ("ATTACH '{file}'", "the query is ATTACH; wanted one SELECT"),
        ("INSTALL httpfs", "wanted one SELECT"),
        ("SET enable_external_access = true", "the query is SET; wanted one SELECT"),
        ("SELECT 1; COPY t TO '{file}'", "the query is SELECT, COPY; wanted one SELECT"),
        ("SELECT count(*) FROM ROWS", "does not exist"),  # a variable of this module
        ("SELECT device FROM t", "the query gives VARCHAR; wanted one column with a number"),
        ("SELECT score, score FROM t", "the query gives DOUBLE and DOUBLE; wanted one column with a number"),
        ("SELECT devise FROM t", 'Referenced column "devise" not found in FROM clause!; t has device, score'),
        ("SELEKT 1", "syntax error"),
        ("", "the query is nothing; wanted one SELECT"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, sql: str, problem: str) -> None:
    file = tmp_path / "file"
    file.write_text("1")
    with pytest.raises(QueryError) as refusal:
        check_query(sql.format(file=file), "t", ROWS.schema)
    assert problem in str(refusal.value)
    assert file.read_text() == "1"


def test_a_query_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_queries, "_SECONDS", 0.2)
    endless = "SELECT sum(a.range * b.range * c.range) FROM range(99999) a, range(99999) b, range(99999) c"
    with pytest.raises(QueryError, match=r"the query took more than 0\.2 s"):
        query_number(endless, "t", ROWS)
