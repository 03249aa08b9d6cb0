import re
import shutil
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import Files, ShortlistError
from shortlist.features.feast.feast_store_location import feast_store_location
from shortlist.features.fits.publish import announce_views
from shortlist.features.stored_views.view_index import INDEX, ViewIndex
from shortlist.rollout.unpublished_features import describe_unpublished_features
from shortlist.serving.export.signature import FOLDER, Signature
from shortlist.serving.server.features.columns import TextCodes
from shortlist.serving.server.features.snapshot import load_snapshot, load_with_users
from shortlist.serving.server.features.snapshot_refresher import SnapshotRefresher
from shortlist.serving.server.features.tensor_assembler import TensorAssembler
from shortlist.storage.artefacts import write_json

FIRST = date(2026, 3, 6)
ITEM = TextCodes().encode(["item 0"])


def weight(snapshot: Any) -> float:
    table = snapshot.tables["item_id"]
    return float(table.numbers[table.find(ITEM)[0], 0])


@pytest.fixture
def assembler(shop: Any) -> TensorAssembler:
    return TensorAssembler(shop.plan, Signature(model="m", kind="k", numbers=("items:weight", "by_item_id:rows")))


def test_a_snapshot_has_the_values_at_its_time(shop: Any, assembler: TensorAssembler) -> None:
    for day in (1, 3):
        moment = shop.views.start_of(FIRST + timedelta(days=day))
        table = load_snapshot(assembler, shop.views, moment).tables["item_id"]
        past = pl.concat([shop.rows(FIRST + timedelta(days=days_before)) for days_before in range(day)])
        impressions = past.filter(pl.col("item_id") == "item 0").height
        assert table.numbers[table.find(ITEM)[0]].tolist() == [1.0, impressions]


def test_user_views_are_loaded_only_on_request(shop: Any) -> None:
    assembler = TensorAssembler(shop.plan, shop.signature)
    assert "user_id" not in load_snapshot(assembler, shop.views, shop.until).tables
    table = load_with_users(assembler, shop.views, shop.until).tables["user_id"]
    assert table.find(np.array([1]))[0] >= 0
    assert table.find(np.array([123456]))[0] == -1


def test_a_broken_view_keeps_its_table_and_the_others_are_updated(copied: Any, assembler: TensorAssembler) -> None:
    old_snapshot = load_snapshot(assembler, copied.views, copied.until)
    path = copied.folder / "fitted" / "views" / "items.parquet"
    path.write_bytes(b"torn")
    new_snapshot = load_snapshot(assembler, copied.views, copied.until, old_snapshot)
    assert list(new_snapshot.broken) == ["items"]
    assert new_snapshot.views["items"] is old_snapshot.views["items"]
    assert weight(new_snapshot) == 1.0
    assert new_snapshot.empty_views == set()
    fresh = load_snapshot(assembler, copied.views, copied.until)  # nothing to keep: unknown, and said to be so
    assert np.isnan(weight(fresh))
    assert fresh.empty_views == {"items"}
    assert load_snapshot(assembler, copied.views, copied.until, fresh).empty_views == {"items"}  # nothing learnt since
    with pytest.raises(ShortlistError, match="view 'items' cannot be read"):
        load_with_users(assembler, copied.views, copied.until)


def test_a_view_without_a_feature_of_the_model_is_broken(copied: Any, assembler: TensorAssembler) -> None:
    folder = copied.folder / "fitted" / "views"
    index_fields = copied.views.model_dump(mode="json")
    items = next(view for view in index_fields["views"] if view["name"] == "items")
    items["features"] = [feature for feature in items["features"] if feature["name"] != "weight"]
    write_json(folder / INDEX, index_fields)
    broken = load_snapshot(assembler, ViewIndex.read(folder), copied.until).broken
    assert broken["items"].startswith("view 'items' has no 'weight'")


def test_features_that_are_not_published_are_named(copied: Any, tmp_path: Path) -> None:
    shutil.copytree(copied.folder / "fitted" / "vocabularies", tmp_path / "model" / "preprocessing" / "vocabularies")
    shutil.copy(copied.folder / "fitted" / Files.FEATURES, tmp_path / "model" / "preprocessing" / Files.FEATURES)
    (tmp_path / "model" / FOLDER).mkdir()
    Signature(model="m", kind="k", numbers=("items:weight", "by_user_id:rows")).write(tmp_path / "model" / FOLDER)
    location = feast_store_location(copied.store)
    assert describe_unpublished_features(tmp_path / "model", location) == ""
    index_fields = copied.views.model_dump(mode="json")
    items = next(view for view in index_fields["views"] if view["name"] == "items")
    items["features"] = [feature for feature in items["features"] if feature["name"] != "weight"]
    write_json(copied.views.folder / INDEX, index_fields)
    sentence = describe_unpublished_features(tmp_path / "model", location)
    assert re.fullmatch(r"the features published on \d{4}-\d\d-\d\dT\S{8} have no 'items:weight'", sentence)
    (copied.views.folder / INDEX).unlink()
    sentence = describe_unpublished_features(tmp_path / "model", location)
    assert sentence.startswith("the published features cannot be read (") and "there is no views.json" in sentence


def test_two_rows_with_one_key_are_refused(copied: Any, assembler: TensorAssembler) -> None:
    path = copied.folder / "fitted" / "views" / "items.parquet"
    rows = pl.read_parquet(path)
    pl.concat([rows, rows.head(1)]).write_parquet(path)
    broken = load_snapshot(assembler, copied.views, copied.until).broken
    assert broken == {"items": "view 'items': two rows have the same key; publish the features again"}


def test_published_views_are_loaded_and_unreadable_ones_are_reported(copied: Any, assembler: TensorAssembler) -> None:
    looks: list[bool] = []
    refresh = SnapshotRefresher(assembler, copied.store, 5, looks.append)
    pointer = copied.store / "serving.json"
    announcement = pointer.read_text()
    pointer.unlink()
    refresh.poll()
    assert refresh.current is None
    assert "serving.json" in (refresh.problem or "")
    pointer.write_text(announcement)
    refresh.poll()
    assert (refresh.problem, weight(refresh.current)) == (None, 1.0)
    first = refresh.current
    refresh.poll()
    assert refresh.current is first  # nothing new
    announce_views(copied.folder / "nowhere", copied.store, copied.until, copied.folder / "log")
    refresh.poll()
    assert refresh.current is first
    assert "nowhere" in (refresh.problem or "")
    announce_views(copied.folder / "fitted" / "views", copied.store, copied.until, copied.folder / "log")
    refresh.poll()
    assert refresh.problem is None
    assert refresh.current is not first
    assert looks == [True, False, True, True]


def test_a_file_that_is_not_the_published_one_is_not_served(copied: Any, assembler: TensorAssembler) -> None:
    views = copied.folder / "fitted" / "views"
    counted = copied.until - timedelta(hours=1)
    announce_views(views, copied.store, copied.until, copied.folder / "log", counted)
    refresh = SnapshotRefresher(assembler, copied.store, 5, None)
    refresh.poll()
    assert (refresh.problem, weight(refresh.current)) == (None, 1.0)
    assert refresh.counted_until == counted.timestamp()
    announce_views(views, copied.store, copied.until, copied.folder / "log")
    path = views / "items.parquet"
    pl.read_parquet(path).with_columns(weight=pl.lit(9.0)).write_parquet(path)
    refresh.poll()
    assert weight(refresh.current) == 1.0
    assert "items.parquet: is not the file that was published; publish the features again" in (refresh.problem or "")


def test_a_model_without_look_ups_needs_no_store(shop: Any) -> None:
    plain = SnapshotRefresher(
        TensorAssembler(shop.plan, Signature(model="m", kind="k", numbers=("price",))), None, 5, None
    )
    plain.poll()
    assert plain.problem is None
    assert plain.current is not None


def test_a_model_with_look_ups_is_never_ready_without_a_store(assembler: TensorAssembler) -> None:
    refresh = SnapshotRefresher(assembler, None, 5, None)
    refresh.poll()
    assert refresh.current is None
    assert refresh.problem == "the model looks features up, but the settings name no store"
