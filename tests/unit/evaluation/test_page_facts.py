from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import Files
from shortlist.report import page_facts
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
                "impression_id": [1, 2, 3, 4],
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


def ranked_table(folder: Path, rows_per_day: int) -> DayTable:
    """A table whose numbers know the label, and whose ids had other label rates before the test day."""
    place = np.arange(2 * rows_per_day)
    label, is_test = place % 4 == 0, place >= rows_per_day
    rows = pl.DataFrame(
        {
            "label": label.astype(np.int8),
            "impression_id": place,
            "day": [date(2026, 1, 6) if later else date(2026, 1, 5) for later in is_test],
            "noise": pl.Series((place // 4 % 10).astype(np.float32)),
            "leak": pl.Series(-label.astype(np.float32)),
            "code": pl.Series(np.where(label, 9, place % 2).astype(np.uint32)),
            "reversed": pl.Series((label != is_test).astype(np.uint32)),
            "tags": pl.Series([[7, number] for number in place % 2], dtype=pl.List(pl.UInt32)),
            "vector": pl.Series([[0.0, 1.0]] * place.size, dtype=pl.Array(pl.Float32, 2)),
        }
    )
    writer = DayTableWriter(folder, Files.TABLE, chunk_rows=rows_per_day // 3)
    writer.append(rows)
    kinds = {"noise": "dense", "leak": "dense", "code": "id", "reversed": "id", "tags": "ids", "vector": "vector"}
    columns = [{"name": name, "kind": kind, "size": None, "width": None} for name, kind in kinds.items()]
    return writer.close({"columns": columns, "split": SPLIT})


def test_features_are_ranked_alone_on_the_test_days_the_best_first(tmp_path: Path) -> None:
    facts = feature_facts(ranked_table(tmp_path, 400))
    assert [(fact.name, fact.auc) for fact in facts] == [
        ("leak", 1.0), ("code", 1.0),
        ("tags", pytest.approx(1 / 3 * 1 / 2 + 2 / 3)),  # the odd rows, two thirds of the negatives, have lower rates
        ("noise", 0.5),
        ("reversed", 0.0),  # ids are ranked by the label rates of the days before, which the test days reverse
        ("vector", None),
    ]  # fmt: skip
    assert {fact.ranked_rows for fact in facts} == {400}


def test_features_are_ranked_on_a_bounded_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_facts, "_RANKED_VALUES", 5 * 300)  # five features
    leak = feature_facts(ranked_table(tmp_path, 4_000))[0]
    assert (leak.name, leak.auc) == ("leak", 1.0)
    assert leak.ranked_rows == pytest.approx(300, abs=4 * 300**0.5)


def test_a_label_without_ten_rows_ranks_no_feature(tmp_path: Path) -> None:
    assert {fact.auc for fact in feature_facts(ranked_table(tmp_path, 36))} == {None}  # nine positives


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
