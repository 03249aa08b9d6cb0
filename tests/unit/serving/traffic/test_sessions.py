"""Sessions of the log as requests, without outcomes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import Columns, DataError, Files
from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.traffic.inputs import as_array, sent_columns
from shortlist.serving.traffic.sessions import Session, Sessions
from shortlist.spec.data import Column, Data
from shortlist.storage.tables import DayTableWriter

START = datetime(2026, 1, 5, tzinfo=UTC)
DATA = Data.model_validate(
    {
        "source": {"kind": "generated", "rows": 1_000},
        "columns": [
            {"name": "user_id", "type": "string"},
            {"name": "item_id", "type": "integer"},
            {"name": "surface", "type": "string"},
            {"name": "price", "type": "number"},
            {"name": "seconds", "type": "number", "known": "after"},
            {"name": "is_click", "type": "integer"},
            {"name": "number", "type": "integer"},
        ],
        "label": "is_click",
        "impression": "number",
        "clock": {"kind": "column", "column": "time", "unit": "s"},
        "user": "user_id",
        "item": "item_id",
    }
)
WITHOUT_KEYS = DATA.model_copy(update={"user": None, "item": None})


def rows(*impressions: tuple[int, str | None, int, int]) -> pl.DataFrame:
    """Day, user, item, label; an impression each minute."""
    times = [START + timedelta(days=day, minutes=number) for number, (day, *_) in enumerate(impressions)]
    return pl.DataFrame(
        {
            Columns.TIME: pl.Series(times, dtype=pl.Datetime("us", "UTC")),
            Columns.DAY: [time.date() for time in times],
            Columns.IMPRESSION: range(len(times)),
            Columns.LABEL: pl.Series([label for *_, label in impressions], dtype=pl.Int8),
            "user_id": pl.Series([user for _, user, _, _ in impressions], dtype=pl.String),
            "item_id": [item for _, _, item, _ in impressions],
            "surface": ["home"] * len(times),
            "price": [float(item) for _, _, item, _ in impressions],
            "seconds": [1.0] * len(times),
        }
    )


def sessions(folder: Path, frame: pl.DataFrame, data: Data = DATA, **options: Any) -> list[Session]:
    writer = DayTableWriter(folder, Files.LOG, 1_000)
    writer.append(frame)
    writer.close()
    return list(Sessions(data, folder, **options))


def test_a_session_has_one_users_impressions_of_a_day_in_time_order(tmp_path: Path) -> None:
    frame = rows((0, "ann", 1, 0), (1, "bob", 2, 1), (1, "ann", 3, 0), (1, "bob", 4, 0), (1, "ann", 5, 1))
    played = sessions(tmp_path, frame)
    assert [(session.user, session.items, session.labels.tolist()) for session in played] == [
        ("bob", [2, 4], [1, 0]),
        ("ann", [3, 5], [0, 1]),
    ]
    bob = played[0].inputs
    assert bob["item_id"].tolist() == [2, 4]
    first = int((START + timedelta(days=1, minutes=1)).timestamp()) * 1_000_000
    assert bob[Columns.TIME].tolist() == [first, first + 120_000_000]


def test_equal_values_are_sent_once_except_items_and_times(tmp_path: Path) -> None:
    (session,) = sessions(tmp_path, rows((0, "ann", 7, 0), (0, "ann", 7, 1), (0, "ann", 7, 0)))
    assert {name: values.shape for name, values in session.inputs.items()} == {
        Columns.TIME: (3,), "user_id": (1,), "item_id": (3,), "surface": (1,), "price": (1,),
    }  # fmt: skip
    assert session.inputs["user_id"].tolist() == ["ann"]


def test_outcomes_labels_and_impression_ids_are_not_sent(tmp_path: Path) -> None:
    (session,) = sessions(tmp_path, rows((0, "ann", 1, 1)))
    assert not {"seconds", "is_click", "label", "number", Columns.IMPRESSION} & set(session.inputs)
    assert set(sent_columns(DATA)) == {Columns.TIME, "user_id", "item_id", "surface", "price"}


def test_a_long_day_becomes_several_sessions(tmp_path: Path) -> None:
    played = sessions(tmp_path, rows(*((0, "ann", item, 0) for item in range(5))), rows=2)
    assert [session.items for session in played] == [[0, 1], [2, 3], [4]]


def test_without_users_sessions_are_in_time_order(tmp_path: Path) -> None:
    played = sessions(tmp_path, rows(*((0, f"u{item}", item, 0) for item in range(5))), WITHOUT_KEYS, rows=3)
    assert [(session.user, session.items, len(session.labels)) for session in played] == [
        (None, None, 3),
        (None, None, 2),
    ]
    assert played[0].inputs["price"].tolist() == [0.0, 1.0, 2.0]


def test_a_null_user_is_no_user(tmp_path: Path) -> None:
    (session,) = sessions(tmp_path, rows((0, None, 1, 0), (0, None, 2, 0)))
    assert session.user is None
    assert session.inputs["user_id"].tolist() == [""]


def test_only_the_newest_days_are_played(tmp_path: Path) -> None:
    frame = rows(*((day, f"u{day}", 1, 0) for day in range(4)))
    assert {session.user for session in sessions(tmp_path, frame, days=2)} == {"u2", "u3"}


def test_an_empty_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no rows; there is nothing to play"):
        sessions(tmp_path, rows())


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ({"type": "integer"}, pl.Series([1, None]), [1, NO_CODE]),
        ({"type": "hex"}, pl.Series([-1, None]), [-1, NO_CODE]),
        ({"type": "date"}, pl.Series([date(1970, 1, 3), None]), [2, NO_CODE]),
        ({"type": "string"}, pl.Series(["a", None]), ["a", ""]),
        ({"type": "tags"}, pl.Series([["a", "b"], None, []]), [["a", "b"], ["", ""], ["", ""]]),
        (
            {"type": "tags", "tag_type": "integer"},
            pl.Series([[1, 2], None, [3]], dtype=pl.List(pl.Int64)),
            [[1, 2], [NO_CODE, NO_CODE], [3, NO_CODE]],
        ),
        ({"type": "vector"}, pl.Series([[1.0, 2.0]], dtype=pl.Array(pl.Float32, 2)), [[1.0, 2.0]]),
    ],
)
def test_a_column_becomes_an_input(kind: dict[str, str], values: pl.Series, expected: list[object]) -> None:
    assert as_array(values, Column(name="x", **kind)).tolist() == expected  # type: ignore[arg-type] # kinds of columns


def test_a_null_number_is_not_a_number() -> None:
    np.testing.assert_array_equal(as_array(pl.Series([0.5, None]), Column(name="x", type="number")), [0.5, np.nan])
