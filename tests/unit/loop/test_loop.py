"""What a loop refuses, when it trains, what it collects, and which slates other policies show."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from shortlist.contracts import Columns, ShortlistError
from shortlist.data.base_rows import clock_failures
from shortlist.data.collected import CollectedLog, CollectedRows
from shortlist.data.world.answering_world import NO_ITEM, AnsweringWorld
from shortlist.loop.collected_day import EXPLORED, VERSION, publish_day
from shortlist.loop.loop import LivedLoop, _due_time, first_live_day
from shortlist.loop.policies import random_slates, slate_matrix
from shortlist.spec.load import parse_spec
from shortlist.spec.spec import Spec

SHIPPED = Path(__file__).parents[3] / "pipelines/specs/loop.yaml"


def shipped(**source: Any) -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
    spec["data"]["source"] |= source
    return spec


def parsed(spec: dict[str, Any]) -> Spec:
    return parse_spec(yaml.safe_dump(spec))


def test_the_shipped_loop_lives_for_28_days() -> None:
    spec = parsed(shipped())
    assert (first_live_day(spec), spec.data.source.days) == (8, 36)  # type: ignore[union-attr]


def test_a_spec_that_is_no_loop_is_refused() -> None:
    without_retrieval = shipped()
    for section in ("retrieval", "filters", "ordering"):
        del without_retrieval[section]
    del without_retrieval["gates"]["custom"]
    with pytest.raises(ShortlistError, match=r"spec 'loop': declares no retrieval; a loop shows users what a release"):
        first_live_day(parsed(without_retrieval))

    not_live = shipped()
    del not_live["data"]["live"]
    with pytest.raises(ShortlistError, match=r"wanted data\.live with collect: true and since: the moment from which"):
        first_live_day(parsed(not_live))

    for since in ("2026-01-13T12:00:00Z", "2026-01-05T00:00:00Z", "2026-03-01T00:00:00Z"):
        outside = shipped()
        outside["data"]["live"]["since"] = since
        with pytest.raises(
            ShortlistError, match=r"data\.live\.since: got 2026.*; a loop wants a midnight .* 2026-01-05 and 2026-02-10"
        ):
            first_live_day(parsed(outside))

    with pytest.raises(ShortlistError, match=r"data\.source has chapters, lifetime or likes"):
        first_live_day(parsed(shipped(likes={})))

    files = shipped()
    files["data"]["source"] = {"kind": "files", "path": "log.parquet", "format": "parquet"}
    files["data"]["live"]["max_age"] = None
    with pytest.raises(ShortlistError, match=r"a loop needs users who answer; got data\.source of kind 'files'"):
        first_live_day(parsed(files))


def test_a_schedule_is_due_on_its_days() -> None:
    monday, tuesday = date(2026, 1, 12), date(2026, 1, 13)
    due_times = [_due_time("0 2 * * 1,4", day) for day in (monday, tuesday)]
    assert due_times == [datetime(2026, 1, 12, 2, tzinfo=UTC), None]
    assert _due_time("0 0 * * *", tuesday) == datetime(2026, 1, 13, tzinfo=UTC)
    assert _due_time(None, tuesday) is None


@pytest.mark.parametrize(
    ("refresh", "retrain", "actions"),
    [
        ("0 4 * * *", "0 1 * * *", ["retrain", "refresh"]),
        ("0 1 * * *", "0 4 * * *", ["refresh", "retrain"]),
        ("0 1 * * *", "0 4 1 6 *", ["refresh"]),
        (None, None, []),
    ],
)
def test_a_night_follows_the_times_of_the_schedule(
    refresh: str | None, retrain: str | None, actions: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = parsed(shipped())
    schedule = spec.schedule.model_copy(update={"refresh": refresh, "retrain": retrain})
    loop = LivedLoop(spec.model_copy(update={"schedule": schedule}), tmp_path)
    done: list[str] = []
    for name in ("refresh", "retrain"):
        monkeypatch.setattr(loop, f"_{name}", lambda day, name=name: done.append(name))
    monkeypatch.setattr(loop, "_open_champion", lambda: None)
    loop.pass_night(8)
    assert done == actions


def test_rows_that_users_saw_are_collected_like_served_traffic(tmp_path: Path) -> None:
    spec = parsed(shipped(rows=4_000, users=200, items=100, days=10, drifts=[]))
    world = AnsweringWorld(spec.data.source, 60, 8)  # type: ignore[arg-type]
    requests = world.ask(9.0)
    random = np.random.default_rng(1)
    answered = world.answer(requests, random_slates(world, requests, 8, random, 10))
    answered = answered.with_columns(pl.lit(False).alias(EXPLORED), pl.lit(3).alias(VERSION))
    log = CollectedLog.open(str(tmp_path), spec.name)
    count = publish_day(log, spec.data, spec.name, answered, ["surface"])
    seen = answered.filter("seen")
    assert count == seen.height < answered.height

    text = CollectedRows.describe_newest(spec.data, str(tmp_path), spec.name)
    collected = CollectedRows.parse(text)
    assert collected is not None
    ((_, rows, lost),) = collected.iter_frames()
    assert (rows.height, lost.height) == (seen.height, 0)
    assert rows[Columns.LABEL].sum() == seen["is_click"].sum()
    assert rows["policy"].unique().to_list() == ["3"] and rows["propensity"].null_count() == rows.height
    assert sorted(rows["position"]) == sorted(seen["position"])
    assert rows["surface"].null_count() == 0 and rows["device"].null_count() == rows.height  # it was not sent
    assert rows[Columns.IMPRESSION].is_unique().all() and clock_failures(rows, spec.data) == []
    times = rows.group_by("request_id").agg(pl.col(Columns.TIME).n_unique())[Columns.TIME]
    assert times.unique().to_list() == [1]  # all rows of a slate are of the request's time
    assert spec.data.live.since is None or rows[Columns.TIME].min() >= spec.data.live.since  # type: ignore[operator]


def test_slates_are_padded_and_random_ones_hold_different_items() -> None:
    matrix = slate_matrix([pl.Series([4, 5]), pl.Series([], dtype=pl.Int64)], 3)
    assert matrix.tolist() == [[4, 5, NO_ITEM], [NO_ITEM] * 3]
    world = AnsweringWorld(parsed(shipped(rows=4_000, users=200, items=60, days=10, drifts=[])).data.source, 60, 8)  # type: ignore[arg-type]
    requests = world.ask(9.0)
    slates = random_slates(world, requests, 8, np.random.default_rng(0), 10)
    assert all(len(set(slate)) == 10 for slate in slates.tolist())
    assert set(slates.reshape(-1)) <= set(world.published(8))
