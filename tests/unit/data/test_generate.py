"""The generated log: the same seed gives the same bytes, its truth is known, and every drift shows from its day on."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from shortlist.contracts import Columns, DataError
from shortlist.data.best_candidates import best_candidates
from shortlist.data.click_model import ClickModel
from shortlist.data.generate import FIRST_ITEM, FIRST_USER, generate_log
from shortlist.data.synthetic_world import build_world
from shortlist.data.traffic import draw_impressions, item_exposure, plan_parts
from shortlist.spec.data import Drift, GeneratedChapters, GeneratedSource
from shortlist.storage.artefacts import folder_digest

WORLD = GeneratedSource(kind="generated", rows=40_000, users=1_500, items=600, days=8)
FROM_DAY = 5


def generated(folder: Path, *drifts: Drift) -> pl.DataFrame:
    generate_log(WORLD.model_copy(update={"drifts": drifts}), folder)
    rows = pl.read_parquet(folder / "impressions" / "*.parquet")
    return rows.with_columns((pl.col("event_time").dt.date() - WORLD.start).dt.total_days().alias("number"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("world") / "log"


@pytest.fixture(scope="module")
def log(folder: Path) -> pl.DataFrame:
    return generated(folder)


def before(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("number") < FROM_DAY)


def after(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("number") >= FROM_DAY)


def test_the_same_seed_gives_the_same_bytes(folder: Path, log: pl.DataFrame, tmp_path: Path) -> None:
    generate_log(WORLD, tmp_path / "again")
    generate_log(WORLD.model_copy(update={"seed": 8}), tmp_path / "other")
    digests = [folder_digest(one) for one in (folder, tmp_path / "again", tmp_path / "other")]
    assert digests[0] == digests[1] != digests[2]


def test_it_has_the_declared_size_and_order(log: pl.DataFrame) -> None:
    assert log.height == WORLD.rows
    assert log["number"].unique().sort().to_list() == list(range(WORLD.days))
    assert log["event_time"].is_sorted()
    assert log["impression_id"].is_unique().all()


def test_clicks_happen_as_often_as_planted(log: pl.DataFrame) -> None:
    truth = log[Columns.BEST].to_numpy()
    deviation = float(np.sqrt((truth * (1 - truth)).sum()))
    assert abs(log["is_click"].sum() - truth.sum()) < 4 * deviation
    assert 0.7 < roc_auc_score(log["is_click"], truth) < 0.85


def test_few_items_get_most_of_the_traffic(log: pl.DataFrame) -> None:
    counts = log["item_id"].value_counts(sort=True)["count"]
    assert counts.head(counts.len() // 10).sum() > 0.3 * log.height
    assert counts.max() > 20 * counts.median()


def test_users_come_in_sessions(log: pl.DataFrame) -> None:
    gaps = (
        log.sort("user_id", "event_time")
        .select(pl.col("event_time").diff().over("user_id").dt.total_minutes().alias("minutes"))["minutes"]
        .drop_nulls()
    )
    assert (gaps <= 30).mean() > 0.3
    assert (gaps > 12 * 60).mean() > 0.05


def test_what_is_known_only_afterwards_would_leak(log: pl.DataFrame) -> None:
    assert roc_auc_score(log["is_click"], log["watch_seconds"]) > 0.9


def test_histories_and_side_tables_name_users_and_items(folder: Path, log: pl.DataFrame) -> None:
    users, items = pl.read_parquet(folder / "users.parquet"), pl.read_parquet(folder / "items.parquet")
    assert set(log["user_id"]) <= set(users["user_id"])
    assert set(log["item_id"]) <= set(items["item_id"])
    assert set(users["liked_items"].explode(empty_as_null=False).unique()) <= set(items["item_id"])
    assert items["tags"].list.len().max() > 1


@pytest.mark.parametrize("kind", ["new_items", "changed_tastes", "broken_column", "volume_collapse"])
def test_days_before_a_drift_are_the_same_without_it(kind: str, log: pl.DataFrame, tmp_path: Path) -> None:
    drifted = generated(tmp_path / "log", Drift(kind=kind, from_day=FROM_DAY, strength=0.5))  # type: ignore[arg-type]
    assert before(drifted).equals(before(log))
    assert not after(drifted).equals(after(log))


def test_new_items_were_never_seen_before(log: pl.DataFrame, tmp_path: Path) -> None:
    drifted = generated(tmp_path / "log", Drift(kind="new_items", from_day=FROM_DAY, strength=0.5))
    unseen = ~after(drifted)["item_id"].is_in(before(drifted)["item_id"].implode())
    usual = ~after(log)["item_id"].is_in(before(log)["item_id"].implode())
    assert unseen.mean() > 0.35 > usual.mean() + 0.2


def test_a_broken_column_is_null_for_its_share_of_rows(log: pl.DataFrame, tmp_path: Path) -> None:
    drift = Drift(kind="broken_column", from_day=FROM_DAY, strength=0.5, column="device")
    drifted = generated(tmp_path / "log", drift)
    assert before(drifted)["device"].null_count() == before(log)["device"].null_count()
    assert after(drifted)["device"].is_null().mean() == pytest.approx(0.5, abs=0.03)


def test_a_volume_collapse_leaves_its_share_of_the_traffic(log: pl.DataFrame, tmp_path: Path) -> None:
    drifted = generated(tmp_path / "log", Drift(kind="volume_collapse", from_day=FROM_DAY, strength=0.8))
    assert after(drifted).height == pytest.approx(0.2 * after(log).height, rel=0.1)


def test_what_breaks_can_be_mended(log: pl.DataFrame, tmp_path: Path) -> None:
    once = {"from_day": FROM_DAY, "until_day": FROM_DAY + 1, "strength": 0.8}
    drifts = Drift(kind="broken_column", column="device", **once), Drift(kind="volume_collapse", **once)
    drifted = generated(tmp_path / "log", *drifts)
    days = [frame.filter(pl.col("number") == FROM_DAY) for frame in (log, drifted)]
    later = [frame.filter(pl.col("number") > FROM_DAY) for frame in (log, drifted)]
    assert days[1].height == pytest.approx(0.2 * days[0].height, rel=0.1)
    assert days[1]["device"].is_null().mean() > 0.7
    assert later[1].height == later[0].height
    assert later[1]["device"].null_count() == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "new_items", "until_day": 6}, "new_items never ends"),
        ({"kind": "broken_column", "until_day": 5}, "until_day 5 is not after from_day 5"),
    ],
)
def test_a_drift_that_ends_before_it_begins_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Drift.model_validate({"from_day": FROM_DAY, **change})


def test_changed_tastes_change_who_clicks_what(log: pl.DataFrame, tmp_path: Path) -> None:
    drifted = generated(tmp_path / "log", Drift(kind="changed_tastes", from_day=FROM_DAY, strength=1.0))
    both = log.join(drifted, on=["impression_id", "user_id", "item_id"], suffix="_drifted")
    moved = both.select("number", (pl.col(Columns.BEST) - pl.col(f"{Columns.BEST}_drifted")).abs())
    assert before(moved)[Columns.BEST].max() == 0
    assert after(moved).height == after(log).height
    assert after(moved)[Columns.BEST].quantile(0.5) > 0.03


def test_a_column_that_cannot_break_is_refused(tmp_path: Path) -> None:
    drift = Drift(kind="broken_column", from_day=1, column="durations")
    with pytest.raises(DataError, match=r"cannot break 'durations'.*did you mean 'duration'"):
        generate_log(WORLD.model_copy(update={"drifts": (drift,)}), tmp_path / "log")
    assert not (tmp_path / "log").exists()


def test_no_file_is_longer_than_a_part(tmp_path: Path) -> None:
    large = GeneratedSource(kind="generated", rows=900_000, users=1_000, items=500, days=3, start=date(2026, 1, 5))
    generate_log(large, tmp_path / "log")
    heights = [
        pl.scan_parquet(path).select(pl.len()).collect().item() for path in (tmp_path / "log/impressions").iterdir()
    ]
    assert sum(heights) == 900_000
    assert max(heights) <= 250_000


CHAPTERS = WORLD.model_copy(update={"chapters": GeneratedChapters(count=5, follow=0.6, effect=1.5)})


@pytest.fixture(scope="module")
def chaptered(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """The log with chapters, and which chapter its items and users are in."""
    folder = tmp_path_factory.mktemp("chapters") / "log"
    generate_log(CHAPTERS, folder)
    rows = pl.read_parquet(folder / "impressions" / "*.parquet")
    chapters = build_world(CHAPTERS).chapters
    assert chapters is not None
    day = (rows["event_time"].dt.date() - WORLD.start).dt.total_days().to_numpy()
    of_item = chapters.of_item[rows["item_id"].to_numpy() - FIRST_ITEM]
    of_user = (chapters.at_first[rows["user_id"].to_numpy() - FIRST_USER] + day) % 5
    return rows.with_columns(pl.Series("day", day), pl.Series("of_item", of_item), pl.Series("of_user", of_user))


def test_users_go_from_chapter_to_chapter_day_by_day(chaptered: pl.DataFrame) -> None:
    present = (chaptered["of_item"] == chaptered["of_user"]).mean()
    assert present == pytest.approx(0.6 + 0.4 / 5, abs=0.05)
    yesterday = chaptered.select("user_id", pl.col("day") + 1, pl.col("of_item").alias("earlier"))
    pairs = yesterday.join(chaptered, on=["user_id", "day"])
    onwards = ((pairs["of_item"] - pairs["earlier"]) % 5 == 1).mean()
    backwards = ((pairs["of_item"] - pairs["earlier"]) % 5 == 4).mean()
    assert onwards > 0.4 and backwards < 0.2  # the order matters: by chance each is 0.2


def test_clicks_on_the_present_chapter_are_as_likely_as_planted(chaptered: pl.DataFrame) -> None:
    present = pl.col("of_item") == pl.col("of_user")
    rates = chaptered.group_by(present.alias("present")).agg(pl.col("is_click").mean(), pl.col(Columns.BEST).mean())
    ordered = rates.sort("present")
    assert ordered["is_click"][1] > ordered["is_click"][0] + 0.1
    np.testing.assert_allclose(ordered["is_click"], ordered[Columns.BEST], atol=0.02)


def test_chapters_change_neither_users_nor_items_nor_when_they_meet(log: pl.DataFrame, chaptered: pl.DataFrame) -> None:
    same = ["impression_id", "event_time", "user_id", "surface", "device", "position"]
    assert chaptered.select(same).equals(log.select(same))
    kept = (chaptered["item_id"] == log["item_id"]).mean()
    assert kept == pytest.approx(0.4, abs=0.05)  # the others follow


def test_the_best_list_of_a_user_is_of_the_present_chapter() -> None:
    strong = CHAPTERS.model_copy(update={"chapters": GeneratedChapters(count=5, follow=0.9, effect=3.0)})
    chapters = build_world(strong).chapters
    assert chapters is not None
    users = pl.Series([FIRST_USER, FIRST_USER + 1, FIRST_USER + 2])
    for day in (0, 3):
        best = best_candidates(strong, users, [strong.start + timedelta(days=day)], 20) - FIRST_ITEM
        present = chapters.of_item[best] == ((chapters.at_first[:3] + day) % 5)[:, None]
        assert present.mean() > 0.9


SESSIONS = WORLD.model_copy(
    update={"chapters": GeneratedChapters(count=5, follow=0.6, effect=1.5, within_session=True)}
)


def test_within_a_session_an_item_follows_the_one_before() -> None:
    world = build_world(SESSIONS)
    truth, chapters, part = ClickModel.calibrate(SESSIONS, world), world.chapters, plan_parts(SESSIONS)[1]
    assert chapters is not None
    shown = draw_impressions(SESSIONS, world, part)
    first = shown.previous < 0
    next_one = chapters.of_item[shown.item] == chapters.next_chapter(shown.previous)
    assert first.mean() == pytest.approx(1 / 7, abs=0.02) and not next_one[first].any()
    assert next_one[~first].mean() == pytest.approx(0.6 + 0.4 / 5, abs=0.08)
    # The item before counts in the log-odds, and nothing else of the session does.
    nowhere = replace(shown, previous=np.full_like(shown.previous, -1))
    with_it, without = truth.probability(shown, 1), truth.probability(nowhere, 1)
    odds = np.log(with_it / (1 - with_it)) - np.log(without / (1 - without))
    np.testing.assert_allclose(odds, np.where(next_one, 1.5 * truth.scale, 0.0), atol=1e-5)


def test_the_chapters_that_a_user_may_be_in_are_as_likely_as_in_the_log() -> None:
    world = build_world(SESSIONS)
    chapters, part = world.chapters, plan_parts(SESSIONS)[1]
    assert chapters is not None
    found = chapters.next_chapter(draw_impressions(SESSIONS, world, part).previous)
    likely = chapters.chapter_probabilities(np.arange(3), 1, item_exposure(world, 1))
    assert sum(chance for chance, _ in likely) == pytest.approx(1.0)
    for chance, chapter in likely:
        assert chance == pytest.approx((found == chapter[0]).mean(), abs=0.05)
