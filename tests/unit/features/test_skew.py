import shutil
import sqlite3
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from shortlist.contracts import ShortlistError
from shortlist.features.feast.skew import FeatureSkewReport, check_skew
from shortlist.features.feast.store import FeastStore, apply, connect
from shortlist.features.online_stores.sqlite import SQLiteOnline
from shortlist.features.stored_views.view_index import INDEX, StoredView, ViewColumn, ViewIndex
from shortlist.storage.artefacts import write_json

FIRST, SECOND, NEWEST = date(2026, 1, 5), date(2026, 1, 6), date(2026, 1, 7)


def start(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


AFTER_NEWEST = start(NEWEST) + timedelta(days=1)


def moments(*values: datetime) -> pl.Series:
    return pl.Series(list(values), dtype=pl.Datetime("us", "UTC"))


USER_ROWS = pl.DataFrame(
    {
        "user": [1, 1, 2, 2],
        "event_timestamp": moments(start(SECOND), start(NEWEST), start(NEWEST), AFTER_NEWEST),
        "rows": [1, 2, 1, 3],
        "rate": [0.5, None, 1.0, 0.25],
    }
)
TAG_ROWS = pl.DataFrame(
    {"tag": ["a", "b", "a"], "event_timestamp": moments(start(SECOND), start(SECOND), AFTER_NEWEST), "rows": [4, 2, 9]}
)
TOTAL = pl.DataFrame({"everything": [0, 0], "event_timestamp": moments(start(SECOND), start(NEWEST)), "rows": [1, 3]})
FRAMES = {"user_rows": USER_ROWS, "tag_rows": TAG_ROWS, "total": TOTAL}

LOG = pl.DataFrame(
    {
        "user": [1, 2, 1, 2, 1, None],
        "tag": [["a"], ["a", "b"], [], ["b", "zz"], None, ["a"]],
        "event_time": moments(
            *(start(day) + timedelta(hours=9) for day in (FIRST, SECOND, SECOND, NEWEST, NEWEST, NEWEST))
        ),
        "day": [FIRST, SECOND, SECOND, NEWEST, NEWEST, NEWEST],
    }
)
NEWEST_LOG = LOG.filter(day=NEWEST)


def table_look_up(view: str, keys: pl.DataFrame, day: date) -> pl.DataFrame:
    """Look up as the training table does: the last row of the key that holds at the start of the day."""
    past = FRAMES[view].filter(pl.col("event_timestamp") <= start(day))
    newest = past.group_by(keys.columns, maintain_order=True).last()
    return keys.join(newest, on=keys.columns, how="left", maintain_order="left").drop(*keys.columns, "event_timestamp")


def view(name: str, newest_keys: int) -> StoredView:
    types = {"user": "Int64", "everything": "Int64", "tag": "String", "rows": "Int64", "rate": "Float64"}
    key, *features = (
        ViewColumn(name=column_name, dtype=types[column_name])
        for column_name in FRAMES[name].columns
        if column_name in types
    )
    rows = FRAMES[name].height
    return StoredView(
        name=name,
        keys=(key,),
        features=features,
        path=f"{name}.parquet",
        static=False,
        rows=rows,
        newest_keys=newest_keys,
    )


def write(folder: Path, frames: dict[str, pl.DataFrame] = FRAMES, tags: int = 2) -> Path:
    folder.mkdir(exist_ok=True)
    views = (view("user_rows", 2), view("tag_rows", tags), view("total", 1))
    index = ViewIndex(folder=folder, views=views, first_day=FIRST, last_day=NEWEST, timezone="UTC")
    write_json(folder / INDEX, index.model_dump(mode="json"))
    for name, frame in frames.items():
        frame.write_parquet(folder / f"{name}.parquet")
    return folder


@pytest.fixture(scope="session")
def materialised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("skew")
    store = apply(write(folder / "views"), folder / "store", "skew", SQLiteOnline(), user="user")
    store.materialize(start(NEWEST))
    return folder


@pytest.fixture
def store(materialised: Path, tmp_path: Path) -> FeastStore:
    """Return a copy of the store that a test may change."""
    shutil.copytree(materialised / "store", tmp_path / "store")
    return connect(materialised / "views", tmp_path / "store", "skew", SQLiteOnline())


def test_a_table_that_agrees_with_feast_has_no_skew(store: FeastStore) -> None:
    # user_rows: 5 rows with a user; tag_rows: a | a, b | b, zz | a; total: one per row and moment, 6 rows at 3 moments
    sample = 5 + (1 + 2 + 2 + 1) + 3
    newest = 2 + 3 + 1  # users 1, 2; tags b, zz, a; everything
    assert check_skew(store, LOG, NEWEST_LOG, table_look_up) == FeatureSkewReport(
        rows_checked=6 + 3,
        keys_checked=sample + newest,
        historical_mismatches=0,
        online_mismatches=0,
        row_count_ok=True,
        columns={"user_rows:rows": 0, "user_rows:rate": 0, "tag_rows:rows": 0, "total:rows": 0},
    )


def test_a_table_that_sees_its_own_day_is_detected(store: FeastStore) -> None:
    def leaking(view: str, keys: pl.DataFrame, day: date) -> pl.DataFrame:
        return table_look_up(view, keys, day + timedelta(days=1))

    report = check_skew(store, LOG, NEWEST_LOG, leaking)
    assert report.historical_mismatches > 0
    assert report.online_mismatches == 2  # user 2 and tag a have new values after the newest day
    assert report.columns["user_rows:rate"] > 0


def test_a_changed_value_in_the_online_store_is_detected(store: FeastStore, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "store" / "online.db") as online:
        changed = online.execute(
            "UPDATE skew_user_rows SET value = (SELECT value FROM skew_total)"  # 3 in place of 2 or 1
            " WHERE rowid = (SELECT min(rowid) FROM skew_user_rows WHERE feature_name = 'rows')"
        )
    online.close()
    assert changed.rowcount == 1
    report = check_skew(store, LOG, NEWEST_LOG, table_look_up)
    assert (report.historical_mismatches, report.online_mismatches) == (0, 1)
    assert report.columns["user_rows:rows"] == 1


def test_a_changed_value_in_the_files_is_detected(tmp_path: Path) -> None:
    store = apply(write(tmp_path / "views"), tmp_path / "store", "skew", SQLiteOnline(), user="user")
    store.materialize(start(NEWEST))
    changed = USER_ROWS.with_columns(rows=pl.Series([1, 2, 7, 3]))  # user 2 from the newest day on
    changed.write_parquet(tmp_path / "views" / "user_rows.parquet")
    report = check_skew(store, LOG, NEWEST_LOG, table_look_up)
    assert (report.historical_mismatches, report.online_mismatches) == (1, 0)
    assert report.columns == {"user_rows:rows": 1, "user_rows:rate": 0, "tag_rows:rows": 0, "total:rows": 0}


def test_a_row_missing_from_the_files_is_detected(tmp_path: Path) -> None:
    store = apply(write(tmp_path / "views"), tmp_path / "store", "skew", SQLiteOnline(), user="user")
    TAG_ROWS.filter(pl.col("tag") != "b").write_parquet(tmp_path / "views" / "tag_rows.parquet")
    store.materialize(start(NEWEST))
    report = check_skew(store, LOG, NEWEST_LOG, table_look_up)
    assert (report.historical_mismatches, report.online_mismatches) == (2, 1)  # b on two days; b among the newest


def test_dropped_answers_of_feast_are_detected(store: FeastStore, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = FeastStore._at_event_time
    monkeypatch.setattr(FeastStore, "_at_event_time", lambda self, view, key_rows: whole(self, view, key_rows).head(-1))
    report = check_skew(store, LOG, NEWEST_LOG, table_look_up)
    assert not report.row_count_ok
    assert report.historical_mismatches == report.keys_checked - 6  # none of the sample's answers counts as right


def test_a_store_that_is_a_day_ahead_is_compared_with_the_next_days_lookups(store: FeastStore) -> None:
    store.materialize(AFTER_NEWEST)
    report = check_skew(store, LOG, NEWEST_LOG, table_look_up)
    assert report.online_mismatches == 0
    assert store.online(pl.DataFrame({"user": [2]}), ["user_rows"])["user_rows:rows"].item() == 3


def test_a_store_without_any_values_is_refused(tmp_path: Path) -> None:
    store = apply(write(tmp_path / "views"), tmp_path / "store", "skew", SQLiteOnline(), user="user")
    with pytest.raises(ShortlistError, match="view 'user_rows' is not in the online store yet; materialise it first"):
        check_skew(store, LOG, NEWEST_LOG, table_look_up)


def test_a_large_view_is_compared_with_its_served_snapshot(tmp_path: Path) -> None:
    store = apply(write(tmp_path / "views", tags=50_001), tmp_path / "store", "skew", SQLiteOnline(), user="user")
    assert set(store.materialize(start(NEWEST))) == {"user_rows", "total"}
    assert check_skew(store, LOG, NEWEST_LOG, table_look_up).online_mismatches == 0
    TAG_ROWS.with_columns(rows=pl.lit(0, pl.Int64)).write_parquet(tmp_path / "views" / "tag_rows.parquet")
    assert check_skew(store, LOG.clear(), NEWEST_LOG, table_look_up).online_mismatches == 2  # tags a and b, not zz


def test_a_key_of_a_side_table_is_read_from_the_looked_up_column(tmp_path: Path) -> None:
    """The log holds items; their tags are looked up in the side table `items`, and counted by tag."""
    index = ViewIndex.read(write(tmp_path / "views"))
    sizes = {"path": "items.parquet", "static": True, "rows": 1, "newest_keys": 1}
    item, tag = ViewColumn(name="item", dtype="Int64"), ViewColumn(name="tag", dtype="String")
    views = (StoredView(name="items", keys=(item,), features=(tag,), **sizes), index.view("tag_rows"))
    write_json(index.folder / INDEX, index.model_copy(update={"views": views}).model_dump(mode="json"))
    pl.DataFrame({"item": [7], "event_timestamp": moments(start(FIRST)), "tag": ["a"]}).write_parquet(
        index.folder / "items.parquet"
    )
    store = apply(index.folder, tmp_path / "store", "skew", SQLiteOnline())
    store.materialize(start(NEWEST))

    def look_up(view: str, keys: pl.DataFrame, day: date) -> pl.DataFrame:
        return keys.select(tag=pl.lit("a")) if view == "items" else table_look_up(view, keys, day)

    rows = LOG.select("event_time", "day", item=pl.lit(7))
    looked_up = rows.with_columns(pl.lit("a").alias("items:tag"))
    report = check_skew(store, looked_up, looked_up.filter(day=NEWEST), look_up)
    assert (report.keys_checked, report.historical_mismatches, report.online_mismatches) == (2 * (3 + 1), 0, 0)
    with pytest.raises(ShortlistError, match="the rows to compare lack the key 'tag'; look their side tables up first"):
        check_skew(store, rows, rows, look_up)


def test_a_comparison_of_no_rows_reports_zeros(store: FeastStore) -> None:
    report = check_skew(store, LOG.clear(), LOG.clear(), table_look_up)
    assert (report.rows_checked, report.keys_checked) == (0, 0)
