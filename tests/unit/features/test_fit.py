import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shortlist.contracts import DataError, Files
from shortlist.features.counts.tiles import start_of
from shortlist.features.fits.fit import fit_incrementally
from shortlist.features.fits.previous_fit import newest_fit
from shortlist.features.fits.publish import announce_views
from shortlist.features.values.columns import IncompatibleFitError
from shortlist.spec.features import Features
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import Runtime
from shortlist.spec.split import split_days
from shortlist.storage.artefacts import folder_digest
from shortlist.storage.tables import DayTable

COUNT = {"kind": "count", "key": ["user_id", "page"], "name": "n"}
WORDS = {"kind": "vocabulary", "each": "words", "min_rows": 2}


def rows(world: Any, days: int, per_day: int = 2) -> list[dict[str, Any]]:
    return [
        world.row(day, number, user_id=number, page="x", words=["a"])
        for day in range(days)
        for number in range(per_day)
    ]


def test_only_new_days_are_counted(world: Any) -> None:
    old_fit = world.fit(world.log(rows(world, 4)), [COUNT], "before")
    for counted in (old_fit / "statistics" / "by_user_id__page").iterdir():
        frame = pl.read_parquet(counted)
        frame.with_columns(pl.col("user_id") + 70).write_parquet(counted)
    fitted = world.fit(world.log(rows(world, 5), "later"), [COUNT], "after", previous="before")
    # had the earlier days been counted again, users 70 and 71 would not be there
    view = pl.read_parquet(fitted / "views" / "by_user_id__page.parquet")
    assert sorted(view["user_id"].unique()) == [0, 1, 70, 71]
    assert view.filter(pl.col("user_id") == 70)["rows"].max() == 4


def test_a_log_with_only_new_days_is_enough(world: Any) -> None:
    all_rows = rows(world, 6)
    world.fit(world.log(all_rows[:8]), [COUNT, WORDS], "before")
    numbered = [{**row, "impression_id": number} for number, row in enumerate(all_rows)]
    fitted = world.fit(world.log(numbered[8:], "new"), [COUNT, WORDS], "after", previous="before")
    assert folder_digest(fitted) == folder_digest(world.fit(world.log(all_rows, "all"), [COUNT, WORDS], "whole"))


def test_uncounted_features_may_change_with_a_previous_fit(world: Any) -> None:
    log = world.log(rows(world, 5))
    world.fit(log, [COUNT, WORDS], "before")
    fitted = world.fit(log, [{**COUNT, "window_days": 2}], "after", previous="before")
    assert "rows_2d" in pl.read_parquet_schema(fitted / "views" / "by_user_id__page.parquet")
    assert not (fitted / "statistics" / "by_words").exists()


def test_a_previous_fit_that_counted_less_is_refused(world: Any) -> None:
    log = world.log(rows(world, 4))
    world.fit(log, [COUNT], "before")
    with pytest.raises(DataError, match=r"before: 'by_words' was counted otherwise, or not at all"):
        world.fit(log, [COUNT, WORDS], "after", previous="before")


def test_a_day_that_changed_since_is_refused(world: Any) -> None:
    world.fit(world.log(rows(world, 4)), [COUNT], "before")
    late = world.log([*rows(world, 5), world.row(1)], "late")
    with pytest.raises(DataError, match=r"before: 2026-03-03 had 2 rows then and has 3 now"):
        world.fit(late, [COUNT], "after", previous="before")


def test_a_day_whose_values_changed_since_is_refused(world: Any) -> None:
    world.fit(world.log(rows(world, 4)), [COUNT], "before")
    relabelled = [{**row, "label": 1 - row["label"]} if place == 2 else row for place, row in enumerate(rows(world, 5))]
    with pytest.raises(IncompatibleFitError, match=r"before: 2026-03-03 has other values now"):
        world.fit(world.log(relabelled, "late"), [COUNT], "after", previous="before")


def test_another_order_of_rows_and_files_is_no_change(world: Any) -> None:
    all_rows = [{**row, "impression_id": number} for number, row in enumerate(rows(world, 4, per_day=1_100))]
    all_rows = [{**row, "event_time": row["event_time"].replace(hour=1)} for row in all_rows]
    old_fit = world.fit(world.log(all_rows), [COUNT], "before")
    turned = world.log(all_rows[::-1], "turned", chunk_rows=1_000)
    assert folder_digest(world.fit(turned, [COUNT], "after", previous="before")) == folder_digest(old_fit)


def test_an_incomplete_last_day_is_recounted(world: Any) -> None:
    all_rows = rows(world, 5, per_day=4)
    world.fit(world.log(all_rows[:14]), [COUNT], "before")  # two of its rows are still to come
    fitted = world.fit(world.log(all_rows, "later"), [COUNT], "after", previous="before")
    assert folder_digest(fitted) == folder_digest(world.fit(world.log(all_rows, "all"), [COUNT], "whole"))


def test_counted_days_after_the_end_of_the_log_are_refused(world: Any) -> None:
    world.fit(world.log(rows(world, 6)), [COUNT], "before")
    with pytest.raises(IncompatibleFitError, match="before: it has seen 2026-03-07, the log ends on 2026-03-05"):
        world.fit(world.log(rows(world, 4), "cut"), [COUNT], "after", previous="before")


def test_a_counted_day_missing_from_the_log_is_refused(world: Any) -> None:
    """Otherwise the split would be that of all counted days, with features fitted on a validation day."""
    all_rows = rows(world, 7)
    world.fit(world.log(all_rows[:-2]), [COUNT], "before")
    lost = all_rows[-3]["day"]
    log_without_day = world.log([row for row in all_rows if row["day"] != lost], "after")
    with pytest.raises(IncompatibleFitError, match=f"before: it has seen {lost}, which is no longer in the log"):
        world.fit(log_without_day, [COUNT], "fitted", previous="before")


def test_days_that_left_the_log_do_not_move_its_test_days(world: Any) -> None:
    """Otherwise features would be fitted on a day that the feature table, which knows the log alone, validates on."""
    counts = [2] * 6 + [2, 30, 30, 30, 2]  # of the six counted days, and of the log's
    every_row = [
        world.row(day, number, user_id=number, page="x", words=["a"]) for day, count in enumerate(counts)
        for number in range(count)
    ]  # fmt: skip
    world.fit(world.log(every_row[:12]), [COUNT], "before")
    log = world.log([{**row, "impression_id": number} for number, row in enumerate(every_row[12:])], "later")
    fitted = world.fit(log, [COUNT], "after", previous="before")
    split = json.loads((fitted / Files.FEATURES).read_text())["split"]
    of_table = split_days(DayTable.open(log, Files.LOG).rows_by_day, world.data).notes()
    assert len(of_table["test"]) == 2
    assert (split["validation"], split["test"]) == (of_table["validation"], of_table["test"])
    assert len(split["warmup"] + split["train"]) == 6 + 2


MAKER = {"kind": "target", "key": "maker", "name": "maker_rate"}


def with_items(log: Path, change: Callable[[pl.DataFrame], pl.DataFrame]) -> Path:
    items = log / "side" / "items.parquet"
    change(pl.read_parquet(items)).write_parquet(items)
    return log


def test_a_side_table_that_changed_for_counted_rows_is_refused(world: Any) -> None:
    world.fit(world.log(rows(world, 4)), [MAKER], "before")
    moved = pl.when(pl.col("item_id") == 10).then(8).otherwise(pl.col("maker")).alias("maker")
    log = with_items(world.log(rows(world, 5), "later"), lambda items: items.with_columns(moved))
    with pytest.raises(IncompatibleFitError, match="before: side table 'items' has other values for counted rows now"):
        world.fit(log, [MAKER], "after", previous="before")


def test_side_table_rows_that_no_old_row_looks_up_may_change(world: Any) -> None:
    def changed(items: pl.DataFrame) -> pl.DataFrame:
        return pl.concat(
            [items.filter(pl.col("item_id") != 20), items.tail(1).with_columns(item_id=pl.lit(40, pl.Int64))]
        )

    world.fit(world.log(rows(world, 4)), [MAKER], "before")
    log = with_items(world.log([*rows(world, 5), world.row(4, item_id=40)], "later"), changed)
    fitted = world.fit(log, [MAKER], "after", previous="before")
    assert folder_digest(fitted) == folder_digest(world.fit(log, [MAKER], "whole"))


def test_an_incompatible_previous_fit_is_reported_and_replaced(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    events = world.folder / "events.jsonl"
    monkeypatch.setenv("SHORTLIST_PROGRESS", str(events))
    declared = world.data, Features.model_validate({"columns": [COUNT, WORDS]}), Gates(), Runtime(engine="cpu")
    log = world.log([*rows(world, 5), world.row(1)])
    whole = folder_digest(world.fit(log, [COUNT, WORDS], "whole"))
    world.fit(world.log(rows(world, 4), "first"), [COUNT, WORDS], "before")
    torn = shutil.copytree(world.folder / "before", world.folder / "torn")
    (torn / "features.json").write_text("{")
    events.unlink()
    reasons = {"before": "2026-03-03 had 2 rows then and has 3 now", "torn": "not valid JSON", "gone": "missing"}
    for name in reasons:
        is_extended = fit_incrementally(str(world.folder / name), *declared, log, world.folder / f"onto-{name}")
        assert is_extended == (name == "before")  # of which one day is counted again
        assert folder_digest(world.folder / f"onto-{name}") == whole
    notes = [
        event["text"] for line in events.read_text().splitlines() if (event := json.loads(line))["event"] == "note"
    ]
    assert len(notes) == 3
    for message, reason in zip(notes, reasons.values(), strict=True):
        beginning = "Days that have changed were counted again: "
        if reason != reasons["before"]:
            beginning = "Every day was counted again, for the earlier features do not fit: "
        assert message.startswith(beginning) and reason in message
    assert fit_incrementally(str(world.folder / "whole"), *declared, log, world.folder / "again")
    assert folder_digest(world.folder / "again") == whole


def test_the_newest_fit_is_the_one_that_the_store_was_filled_from(world: Any) -> None:
    store = world.folder / "store"
    assert newest_fit(store) == ""
    store.mkdir(exist_ok=True)
    log = world.log(rows(world, 4))
    fitted = world.fit(log, [COUNT])
    announce_views(fitted / "views", store, start_of(rows(world, 4)[-1]["day"], "UTC"), log)
    assert newest_fit(store) == str(fitted)


def test_a_new_day_among_old_ones_is_refused(world: Any) -> None:
    old_rows = [row for row in rows(world, 5) if row["day"].day != 4]
    world.fit(world.log(old_rows), [COUNT], "before")
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


@pytest.mark.long
def test_views_do_not_depend_on_the_memory_limit(world: Any) -> None:
    all_rows = [{**row, "impression_id": number} for number, row in enumerate(rows(world, 3, per_day=4_000))]
    all_rows = [
        {**row, "event_time": all_rows[0]["event_time"], "page": f"page-{row['user_id'] % 7}"} for row in all_rows
    ]
    whole = world.fit(world.log(all_rows), [COUNT], "whole")
    parts = world.log(all_rows, "parts", chunk_rows=1_000)
    pieces = world.fit(parts, [COUNT], "pieces", runtime=Runtime(engine="cpu", chunk_rows=1_000))
    order = ["event_timestamp", "user_id", "page"]
    for name in ("by_user_id__page", "by_item_id"):
        first_view, second_view = (pl.read_parquet(folder / "views" / f"{name}.parquet") for folder in (whole, pieces))
        by = [column for column in order if column in first_view.columns]
        assert second_view.sort(by).equals(first_view.sort(by))
    assert folder_digest(pieces / "statistics") == folder_digest(whole / "statistics")
    assert not (pieces / "scratch").exists()


def test_dates_and_lists_are_stored_in_types_that_feast_supports(world: Any) -> None:
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


def test_a_fit_records_its_declaration_and_days(world: Any) -> None:
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
