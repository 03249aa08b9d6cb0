import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shortlist.contracts import Files, NotMeasuredError, ShortlistError
from shortlist.features.feast.feast_store_location import SERVING
from shortlist.features.feast.store import user_reader
from shortlist.features.fits import publish as publishing
from shortlist.features.fits.publish import publish
from shortlist.features.online_stores.sqlite import SQLiteOnline
from shortlist.features.rows.table import build_table
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import read_json


@pytest.fixture
def published(world: Any) -> Any:
    """A world with published features."""
    columns = [{"kind": "target", "key": "user_id", "name": "rate"}, {"kind": "vocabulary", "each": "city"}]
    rows = [world.row(day, user_id=1 + number % 3, label=number % 2) for day in range(3) for number in range(6)]
    log = world.log(rows)
    fitted = world.fit(log, columns)
    runtime = Runtime(engine="cpu")
    features = Features.model_validate({"columns": columns})
    build_table(world.data, features, None, runtime, log, fitted, world.folder / "table")
    publish("my-spec", world.folder / "store", runtime, 10, log, fitted, world.folder / "table", world.folder / "skew")
    return world


def test_the_announcement_names_the_views_and_their_moment(published: Any) -> None:
    announcement = read_json(published.folder / "store" / SERVING)
    assert announcement["views"] == str((published.folder / "fitted" / "views").resolve())
    assert datetime.fromisoformat(announcement["until"]) == datetime(2026, 3, 2, tzinfo=UTC) + timedelta(days=3)
    assert abs(datetime.now(UTC) - datetime.fromisoformat(announcement["published"])) < timedelta(minutes=5)
    assert read_json(published.folder / "skew" / Files.SKEW)["historical_mismatches"] == 0


def test_days_with_more_rows_make_up_for_a_short_day_in_the_comparison(world: Any) -> None:
    columns = [{"kind": "vocabulary", "each": "city"}]
    rows_by_day = {0: 40, 1: 40, 2: 1}
    log = world.log([world.row(day, user_id=n) for day, count in rows_by_day.items() for n in range(count)])
    fitted, runtime = world.fit(log, columns), Runtime(engine="cpu")
    features = Features.model_validate({"columns": columns})
    build_table(world.data, features, None, runtime, log, fitted, world.folder / "table")
    publish("my-spec", world.folder / "store", runtime, 30, log, fitted, world.folder / "table", world.folder / "skew")
    # 1 of the newest day, 15 and 14 of the others; and the newest day again.
    assert read_json(world.folder / "skew" / Files.SKEW)["rows_checked"] == 1 + 15 + 14 + 1


def test_a_refresh_during_the_comparison_leaves_it_unmeasured(published: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, runtime = published.folder, Runtime(engine="cpu")
    rows = [published.row(day, user_id=1 + number % 3, label=1) for day in range(3) for number in range(6)]
    refreshed_log = published.log(rows, "refreshed-log")
    columns = [{"kind": "target", "key": "user_id", "name": "rate"}, {"kind": "vocabulary", "each": "city"}]
    refreshed = published.fit(refreshed_log, columns, "refreshed")
    compare = publishing.check_skew

    def refresh_first(*arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(publishing, "check_skew", compare)
            publish("my-spec", folder / "store", runtime, 10, refreshed_log, refreshed, None, folder / "refreshed-skew")
        return compare(*arguments)

    monkeypatch.setattr(publishing, "check_skew", refresh_first)
    inputs = "my-spec", folder / "store", runtime, 10, folder / "log", folder / "fitted", folder / "table"
    message = (
        rf"gate 'skew' is not measured: .* replaced meanwhile \(from {refreshed}/views, 20\S+\), .* answers differ"
    )
    with pytest.raises(NotMeasuredError, match=message):
        publish(*inputs, folder / "other-skew")
    assert not (folder / "other-skew").exists()
    monkeypatch.undo()
    publish(*inputs, folder / "other-skew")
    assert read_json(folder / "other-skew" / Files.SKEW)["online_mismatches"] == 0


def test_all_features_of_users_are_read_in_one_call(published: Any) -> None:
    reader = user_reader(published.folder / "store", "my-spec", SQLiteOnline(), "user_id")
    assert {"homes:city", "by_user_id:rows", "by_user_id:sum_label"} <= reader.columns
    answers = reader.rows([2, 4711, 1], ["homes:city", "by_user_id:rows"])
    assert answers == {"homes:city": ["Rome", None, "Oslo"], "by_user_id:rows": [6, None, 6]}
    assert reader.rows([3], ["homes:city"]) == {"homes:city": [None]}


@pytest.mark.parametrize("name", ["registry.db", "online.db"])
def test_a_missing_store_is_one_message(published: Any, tmp_path: Any, name: str) -> None:
    shutil.copytree(published.folder / "store", tmp_path / "copy")
    (tmp_path / "copy" / name).unlink()
    with pytest.raises(ShortlistError, match=f"{name}: does not exist; run the features step first"):
        user_reader(tmp_path / "copy", "my-spec", SQLiteOnline(), "user_id")


def test_users_are_read_while_a_nightly_run_writes(published: Any) -> None:
    reader = user_reader(published.folder / "store", "my-spec", SQLiteOnline(), "user_id")
    with closing(sqlite3.connect(published.folder / "store" / "online.db")) as nightly:
        nightly.execute("BEGIN EXCLUSIVE")
        assert reader.rows([2], ["homes:city"]) == {"homes:city": ["Rome"]}
