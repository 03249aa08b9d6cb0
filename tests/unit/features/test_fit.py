import json
from typing import Any

import polars as pl
import pytest

from shortlist.artefacts import folder_digest
from shortlist.config.runtime import Runtime
from shortlist.contracts import DataError

COUNT = {"kind": "count", "key": ["user_id", "page"], "name": "n"}
WORDS = {"kind": "vocabulary", "each": "words", "min_rows": 2}


def rows(world: Any, days: int, per_day: int = 2) -> list[dict[str, Any]]:
    return [
        world.row(day, number, user_id=number, page="x", words=["a"])
        for day in range(days)
        for number in range(per_day)
    ]


def test_only_new_days_are_counted(world: Any) -> None:
    world.fit(world.log(rows(world, 4)), [COUNT], "before")
    altered = [{**row, "user_id": 9} if row["day"] < rows(world, 4)[-1]["day"] else row for row in rows(world, 5)]
    fitted = world.fit(world.log(altered, "later"), [COUNT], "after", previous="before")
    # had the earlier days been read again, user 9 would be there
    view = pl.read_parquet(fitted / "views" / "by_user_id__page.parquet")
    assert sorted(view["user_id"].unique()) == [0, 1]
    assert view["rows"].max() == 5


def test_a_log_of_new_days_alone_is_enough(world: Any) -> None:
    every = rows(world, 6)
    world.fit(world.log(every[:8]), [COUNT, WORDS], "before")
    numbered = [{**row, "impression_id": number} for number, row in enumerate(every)]
    fitted = world.fit(world.log(numbered[8:], "new"), [COUNT, WORDS], "after", previous="before")
    assert folder_digest(fitted) == folder_digest(world.fit(world.log(every, "all"), [COUNT, WORDS], "whole"))


def test_what_is_not_counted_may_change_with_a_previous_fit(world: Any) -> None:
    log = world.log(rows(world, 5))
    world.fit(log, [COUNT, WORDS], "before")
    fitted = world.fit(log, [{**COUNT, "window_days": 2}], "after", previous="before")
    assert "rows_2d" in pl.read_parquet_schema(fitted / "views" / "by_user_id__page.parquet")
    assert not (fitted / "statistics" / "by_words").exists()


def test_a_previous_fit_that_counted_less_is_refused(world: Any) -> None:
    log = world.log(rows(world, 4))
    world.fit(log, [COUNT], "before")
    with pytest.raises(
        DataError, match=r"before: 'by_words' was counted otherwise, or not at all\. Fit without the prev"
    ):
        world.fit(log, [COUNT, WORDS], "after", previous="before")


def test_a_day_that_changed_since_is_refused(world: Any) -> None:
    world.fit(world.log(rows(world, 4)), [COUNT], "before")
    late = world.log([*rows(world, 5), world.row(1)], "late")
    with pytest.raises(DataError, match=r"before: 2026-03-03 had 2 rows then and has 3 now\. Fit without the previous"):
        world.fit(late, [COUNT], "after", previous="before")


def test_a_new_day_among_old_ones_is_refused(world: Any) -> None:
    known = [row for row in rows(world, 5) if row["day"].day != 4]
    world.fit(world.log(known), [COUNT], "before")
    with pytest.raises(DataError, match="before: 2026-03-04 lies before its last day 2026-03-06 and is new"):
        world.fit(world.log(rows(world, 5), "filled"), [COUNT], "after", previous="before")


def test_an_id_that_would_change_is_refused(world: Any) -> None:
    log = world.log([*rows(world, 5), *(world.row(1, words=["b"]) for _ in range(3)), world.row(0, words=["c"])])
    world.fit(log, [WORDS], "before")
    with pytest.raises(
        DataError, match="words: ids of an earlier fit would change, because its training days or its min"
    ):
        world.fit(log, [{**WORDS, "min_rows": 1}], "after", previous="before")


def test_a_log_with_too_few_days_is_refused(world: Any) -> None:
    with pytest.raises(DataError, match=r"the log has 2 day\(s\)"):
        world.fit(world.log(rows(world, 2)), [COUNT])


def test_more_keys_than_fit_in_memory_are_the_same_keys(world: Any) -> None:
    every = [{**row, "impression_id": number} for number, row in enumerate(rows(world, 3, per_day=4_000))]
    every = [{**row, "event_time": every[0]["event_time"], "page": f"page-{row['user_id'] % 7}"} for row in every]
    whole = world.fit(world.log(every), [COUNT], "whole")
    parts = world.log(every, "parts", chunk_rows=1_000)
    pieces = world.fit(parts, [COUNT], "pieces", runtime=Runtime(engine="cpu", chunk_rows=1_000))
    order = ["event_timestamp", "user_id", "page"]
    for name in ("by_user_id__page", "by_item_id"):
        one, other = (pl.read_parquet(folder / "views" / f"{name}.parquet") for folder in (whole, pieces))
        by = [column for column in order if column in one.columns]
        assert other.sort(by).equals(one.sort(by))
    assert folder_digest(pieces / "statistics") == folder_digest(whole / "statistics")
    assert not (pieces / "scratch").exists()


def test_dates_and_lists_are_stored_as_feast_can_hold_them(world: Any) -> None:
    columns = [
        {"kind": "age", "each": "released"},
        {"kind": "vocabulary", "each": "topics"},
        {"kind": "vector", "each": "vector"},
    ]
    fitted = world.fit(world.log(rows(world, 3)), columns)
    items = pl.read_parquet(fitted / "views" / "items.parquet")
    assert dict(items.schema) == {
        "item_id": pl.Int64,
        "event_timestamp": pl.Datetime("us", "UTC"),
        "released": pl.Int64,
        "topics": pl.List(pl.String),
        "vector": pl.List(pl.Float32),
    }
    assert items["released"].to_list() == [20_513, 20_515, None]  # days from 1970-01-01 to 2026-03-01


def test_what_was_fitted_says_on_what(world: Any) -> None:
    saved = json.loads((world.fit(world.log(rows(world, 4)), [COUNT]) / "features.json").read_text())
    assert saved["split"]["test"] == ["2026-03-05"]
    assert [record["rows"] for record in saved["days"].values()] == [2, 2, 2, 2]


def test_a_vector_column_without_vectors_is_refused(world: Any) -> None:
    with pytest.raises(DataError, match="vector column 'query' holds no vector at all"):
        world.fit(world.log(rows(world, 3)), [{"kind": "vector", "each": "query"}])


def test_vectors_of_two_lengths_are_refused(world: Any) -> None:
    log = world.log([world.row(0, query=[1.0]), world.row(1, query=[1.0, 2.0]), world.row(2)])
    with pytest.raises(DataError, match="vector column 'query': vectors of 1 and of 2 numbers; wanted one length"):
        world.fit(log, [{"kind": "vector", "each": "query"}])
