from __future__ import annotations

from datetime import date
from pathlib import Path

import polars as pl
import pytest

from shortlist.contracts import Files
from shortlist.report.page_facts import broken_rules, feature_facts, split_rows
from shortlist.storage.tables import DayTable, DayTableWriter

COLUMNS = [
    {"name": "rate", "kind": "dense", "size": None, "width": None},
    {"name": "user_id", "kind": "id", "size": 7, "width": None},
    {"name": "tags", "kind": "ids", "size": 5, "width": None},
    {"name": "vector", "kind": "vector", "size": None, "width": 2},
]
SPLIT = {"warmup": [], "train": ["2026-01-05"], "validation": [], "test": ["2026-01-06"]}


@pytest.fixture
def table(tmp_path: Path) -> DayTable:
    writer = DayTableWriter(tmp_path, Files.TABLE, chunk_rows=2)  # several parts
    writer.append(
        pl.DataFrame(
            {
                "label": [0, 1, 0, 1],
                "day": [date(2026, 1, 5)] * 3 + [date(2026, 1, 6)],
                "rate": pl.Series([0.5, None, 0.1, 0.3], dtype=pl.Float32),
                "user_id": pl.Series([0, 1, 2, 0], dtype=pl.UInt32),
                "tags": pl.Series([[1, 2, 3], [], [1], [2]], dtype=pl.List(pl.UInt32)),
                "vector": pl.Series([[0.0, 0.0], [1.0, -1.0], [1.0, 0.0], [0.0, 1.0]], dtype=pl.Array(pl.Float32, 2)),
            }
        )
    )
    return writer.close({"columns": COLUMNS, "split": SPLIT})


def test_features_are_summed_over_all_parts(table: DayTable) -> None:
    rate, user, tags, vector = feature_facts(table)
    assert (rate.missing_share, rate.mean) == (1 / 4, pytest.approx((0.5 + 0.1 + 0.3) / 3))
    assert (user.missing_share, user.size, user.mean) == (2 / 4, 7, None)
    assert (tags.missing_share, tags.mean) == (1 / 4, (3 + 0 + 1 + 1) / 4)
    assert (vector.missing_share, vector.size) == (1 / 4, 2)  # (1, -1) sums to nothing and is not missing


def test_a_table_without_rows_has_features_without_numbers(tmp_path: Path) -> None:
    empty = DayTableWriter(tmp_path, Files.TABLE, chunk_rows=2).close({"columns": COLUMNS, "split": SPLIT})
    assert [(fact.missing_share, fact.mean) for fact in feature_facts(empty)] == [(None, None)] * 4


def test_rows_are_counted_by_part_of_the_split(table: DayTable) -> None:
    assert split_rows(table) == {"warmup": 0, "train": 3, "validation": 0, "test": 1}


def test_broken_rules_come_with_their_first_rows(tmp_path: Path) -> None:
    rows = pl.DataFrame(
        {
            "source_file": ["/data/a.csv"] * 6,
            "source_line": [2, 3, 4, 5, 6, None],
            "rule": ["label_is_0_or_1"] + ["duration_in_range"] * 5,
            "detail": ["label = 7", "duration = -1", "duration = -2", "duration = -3", "duration = -4", None],
        }
    )
    rows.write_parquet(tmp_path / Files.QUARANTINE)
    first, second = broken_rules(tmp_path)
    assert (first.rule, first.rows) == ("duration_in_range", 5)
    assert first.samples == (
        ("a.csv", 3, "duration = -1"), ("a.csv", 4, "duration = -2"), ("a.csv", 5, "duration = -3"),
    )  # fmt: skip
    assert second.samples == (("a.csv", 2, "label = 7"),)
    assert broken_rules(tmp_path / Files.QUARANTINE) == [first, second]


def test_no_quarantine_has_no_broken_rules(tmp_path: Path) -> None:
    assert broken_rules(tmp_path) == []
