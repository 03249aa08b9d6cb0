"""The refresh graph: newer statistics for the serving model, without a training."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from served_days import Served

from shortlist.contracts import Files, ShortlistError
from shortlist.features.feast.feast_store_location import SERVING, spec_feast_store_location
from shortlist.features.feast.store import connect
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.runs.monitoring_runs import run_monitoring_locally
from shortlist.runs.refresh_runs import refresh_is_due, run_refresh_locally
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.load import parse_spec
from shortlist.storage.artefacts import folder_digest, read_json
from shortlist.storage.storage_config import StorageConfig
from shortlist.storage.tables import DayTable
from shortlist.tracking.run_context import RunContext
from shortlist.training.served_features import find_served_features

pytestmark = pytest.mark.long


def test_monitoring_publishes_the_result_of_a_full_count_without_training_when_a_refresh_is_due(
    finished: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    due = Served(parse_spec(yaml.safe_dump({**finished.spec, "schedule": {"refresh": "* * * * *"}})), finished.runs)
    for number in (19, 20):
        due.users(date(2026, 1, number), pl.col("label"))
    pointer, published_before = due.published_an_hour_ago()
    pointer_before, latest = read_json(pointer), (finished.runs / "latest").resolve()
    versions = folder_digest(Path(pointer_before["views"]))
    stores = read_json(finished.runs / "latest" / "arguments.json")["stores"]
    now = datetime.now(UTC)
    assert refresh_is_due(due.spec, stores, now)
    assert not refresh_is_due(parse_spec(yaml.safe_dump(finished.spec)), stores, now)

    assert run_monitoring_locally(due.spec, None, finished.runs) == 0

    pointer_after = read_json(pointer)
    assert pointer_after["published"] > published_before
    assert not refresh_is_due(due.spec, stores, datetime.fromisoformat(pointer_after["published"]))
    assert folder_digest(Path(pointer_after["views"])) == versions  # the same rows, bit by bit the same values
    days = ViewIndex.read(Path(pointer_after["views"]))
    assert datetime.fromisoformat(pointer_after["counted_until"]) == days.start_of(days.last_day + timedelta(days=1))
    assert f"reads statistics of everything before {pointer_after['counted_until']}" in capfd.readouterr().out
    assert (finished.runs / "latest").resolve() == latest


def test_a_refresh_collects_served_rows_and_serves_their_statistics(
    finished: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """As on a cluster, where `schedule.refresh` is a recurring run of its own."""
    day = date(2026, 1, 21)
    # By default some rows of the busiest users are beyond their share of an item's rows.
    live = {"collect": True, "since": f"{day}T00:00:00Z", "max_share": 1.0}
    data = {**finished.spec["data"], "outcome_delay": "1h", "live": live, "rules": {"min_volume_ratio": 0}}
    served = Served(parse_spec(yaml.safe_dump({**finished.spec, "data": data})), finished.runs)
    shown_rows = served.users(day, pl.col("label"))
    assert run_refresh_locally(served.spec, None, finished.runs) == 0
    printed = capfd.readouterr().out
    assert re.search(rf"Batch \d+: {shown_rows.height:,} rows from {day} ", printed)
    assert f"reads statistics of everything before {day + timedelta(days=1)}T00:00:00+00:00" in printed

    announced = read_json(next(finished.runs.glob(f"**/{SERVING}")))
    log = DayTable.open(Path(announced["log"]), Files.LOG)
    assert log.by_day[day].rows == shown_rows.height
    counted = log.scan().group_by("user_id").agg(pl.len().cast(pl.Int64), pl.sum("label").cast(pl.Int64)).collect()
    users = shown_rows.select("user_id").unique(maintain_order=True)
    place = spec_feast_store_location(StorageConfig.parse(str(served.stores)), served.spec.name).served_location
    store = connect(Path(announced["views"]), place, served.spec.name, served.spec.runtime.online_store)
    online = store.online(users, ["by_user_id"]).select("by_user_id:rows", "by_user_id:sum_label").cast(pl.Int64)
    assert online.rows() == users.join(counted, "user_id", maintain_order="left").drop("user_id").rows()


def test_the_champions_own_features_are_refreshed(finished: Any) -> None:
    spec = parse_spec(yaml.safe_dump(finished.spec))
    stores = read_json(finished.runs / "latest" / "arguments.json")["stores"]
    origin = RunContext(name=spec.name, stores=stores)
    moved_on = spec.features.model_copy(update={"tile": "1h"})
    delayed = spec.data.model_copy(update={"outcome_delay": "1d"})
    served = find_served_features(origin, delayed, moved_on)
    assert Features.model_validate_json(served.features) == spec.features
    assert Data.model_validate_json(served.data) == spec.data
    assert served == find_served_features(origin, spec.data, spec.features)
    collecting = Data.model_validate({**delayed.model_dump(mode="json"), "live": {"collect": True}})
    data = Data.model_validate_json(find_served_features(origin, collecting, spec.features).data)
    assert (data.outcome_delay, data.live_outcome_delay) == (spec.data.outcome_delay, "1d")
    with pytest.raises(
        ShortlistError, match=r"spec 'other' has no champion whose features could be refreshed; make run"
    ):
        find_served_features(origin.model_copy(update={"name": "other"}), spec.data, spec.features)


def test_a_refresh_of_nothing_is_refused(finished: Any, tmp_path: Path) -> None:
    spec = parse_spec(yaml.safe_dump(finished.spec))
    with pytest.raises(ShortlistError, match="make run"):
        run_refresh_locally(spec, None, tmp_path / "runs")
