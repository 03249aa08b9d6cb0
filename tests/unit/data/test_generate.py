"""The generated log: deterministic by seed, with known probabilities, and with drifts from their days on."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from shortlist.contracts import Columns, DataError
from shortlist.data.world.click_model import ClickModel
from shortlist.data.world.generate import FIRST_ITEM, FIRST_USER, generate_log
from shortlist.data.world.synthetic_world import build_world
from shortlist.data.world.traffic import draw_impressions, plan_parts
from shortlist.spec.data import Drift, GeneratedChapters, GeneratedSource
from shortlist.storage.artefacts import folder_digest

WORLD = GeneratedSource(kind="generated", rows=40_000, users=1_500, items=600, days=8)
FROM_DAY = 5


def generate_rows(folder: Path, *drifts: Drift) -> pl.DataFrame:
    generate_log(WORLD.model_copy(update={"drifts": drifts}), folder)
    rows = pl.read_parquet(folder / "impressions" / "*.parquet")
    return rows.with_columns((pl.col("event_time").dt.date() - WORLD.start).dt.total_days().alias("number"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("world") / "log"


@pytest.fixture(scope="module")
def log(folder: Path) -> pl.DataFrame:
    return generate_rows(folder)


def rows_before_drift(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("number") < FROM_DAY)


def rows_after_drift(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("number") >= FROM_DAY)


def test_the_same_seed_gives_the_same_bytes(folder: Path, log: pl.DataFrame, tmp_path: Path) -> None:
    generate_log(WORLD, tmp_path / "again")
    generate_log(WORLD.model_copy(update={"seed": 8}), tmp_path / "other")
    digests = [folder_digest(log_folder) for log_folder in (folder, tmp_path / "again", tmp_path / "other")]
    assert digests[0] == digests[1] != digests[2]


def test_the_log_has_the_declared_size_and_order(log: pl.DataFrame) -> None:
    assert log.height == WORLD.rows
    assert log["number"].unique().sort().to_list() == list(range(WORLD.days))
    assert log["event_time"].is_sorted()
    assert log["impression_id"].is_unique().all()


def test_clicks_are_as_frequent_as_planted(log: pl.DataFrame) -> None:
    click_probability = log[Columns.BEST].to_numpy()
    deviation = float(np.sqrt((click_probability * (1 - click_probability)).sum()))
    assert abs(log["is_click"].sum() - click_probability.sum()) < 4 * deviation
    assert 0.7 < roc_auc_score(log["is_click"], click_probability) < 0.85


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


def test_watch_seconds_predict_the_click(log: pl.DataFrame) -> None:
    assert roc_auc_score(log["is_click"], log["watch_seconds"]) > 0.9


def test_side_tables_cover_all_users_and_items_of_the_log(folder: Path, log: pl.DataFrame) -> None:
    users, items = pl.read_parquet(folder / "users.parquet"), pl.read_parquet(folder / "items.parquet")
    assert set(log["user_id"]) <= set(users["user_id"])
    assert set(log["item_id"]) <= set(items["item_id"])
    assert set(users["liked_items"].explode(empty_as_null=False).unique()) <= set(items["item_id"])
    assert items["tags"].list.len().max() > 1


@pytest.mark.parametrize("kind", ["new_items", "changed_tastes", "broken_column", "volume_collapse"])
def test_a_drift_does_not_change_earlier_days(kind: str, log: pl.DataFrame, tmp_path: Path) -> None:
    drifted = generate_rows(tmp_path / "log", Drift(kind=kind, from_day=FROM_DAY, strength=0.5))  # type: ignore[arg-type]
    assert rows_before_drift(drifted).equals(rows_before_drift(log))
    assert not rows_after_drift(drifted).equals(rows_after_drift(log))


def test_new_items_do_not_occur_before_their_drift(log: pl.DataFrame, tmp_path: Path) -> None:
    drifted = generate_rows(tmp_path / "log", Drift(kind="new_items", from_day=FROM_DAY, strength=0.5))
    is_unseen = ~rows_after_drift(drifted)["item_id"].is_in(rows_before_drift(drifted)["item_id"].implode())
    is_unseen_without_drift = ~rows_after_drift(log)["item_id"].is_in(rows_before_drift(log)["item_id"].implode())
    assert is_unseen.mean() > 0.35 > is_unseen_without_drift.mean() + 0.2


def test_a_broken_column_is_null_for_its_share_of_rows(log: pl.DataFrame, tmp_path: Path) -> None:
    drift = Drift(kind="broken_column", from_day=FROM_DAY, strength=0.5, column="device")
    drifted = generate_rows(tmp_path / "log", drift)
    assert rows_before_drift(drifted)["device"].null_count() == rows_before_drift(log)["device"].null_count()
    assert rows_after_drift(drifted)["device"].is_null().mean() == pytest.approx(0.5, abs=0.03)


def test_a_volume_collapse_removes_the_declared_share_of_rows(log: pl.DataFrame, tmp_path: Path) -> None:
    drifted = generate_rows(tmp_path / "log", Drift(kind="volume_collapse", from_day=FROM_DAY, strength=0.8))
    assert rows_after_drift(drifted).height == pytest.approx(0.2 * rows_after_drift(log).height, rel=0.1)


def test_a_drift_with_until_day_ends(log: pl.DataFrame, tmp_path: Path) -> None:
    one_day = {"from_day": FROM_DAY, "until_day": FROM_DAY + 1, "strength": 0.8}
    drifts = Drift(kind="broken_column", column="device", **one_day), Drift(kind="volume_collapse", **one_day)
    drifted = generate_rows(tmp_path / "log", *drifts)
    drift_days = [frame.filter(pl.col("number") == FROM_DAY) for frame in (log, drifted)]
    later_days = [frame.filter(pl.col("number") > FROM_DAY) for frame in (log, drifted)]
    assert drift_days[1].height == pytest.approx(0.2 * drift_days[0].height, rel=0.1)
    assert drift_days[1]["device"].is_null().mean() > 0.7
    assert later_days[1].height == later_days[0].height
    assert later_days[1]["device"].null_count() == 0


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


def test_changed_tastes_change_click_probabilities(log: pl.DataFrame, tmp_path: Path) -> None:
    drifted = generate_rows(tmp_path / "log", Drift(kind="changed_tastes", from_day=FROM_DAY, strength=1.0))
    same_impressions = log.join(drifted, on=["impression_id", "user_id", "item_id"], suffix="_drifted")
    probability_changes = same_impressions.select(
        "number", (pl.col(Columns.BEST) - pl.col(f"{Columns.BEST}_drifted")).abs()
    )
    assert rows_before_drift(probability_changes)[Columns.BEST].max() == 0
    assert rows_after_drift(probability_changes).height == rows_after_drift(log).height
    assert rows_after_drift(probability_changes)[Columns.BEST].quantile(0.5) > 0.03


def test_a_drift_of_an_unknown_column_is_refused(tmp_path: Path) -> None:
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
def log_with_chapters(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """The log with chapters, with the chapters of its items and users."""
    folder = tmp_path_factory.mktemp("chapters") / "log"
    generate_log(CHAPTERS, folder)
    rows = pl.read_parquet(folder / "impressions" / "*.parquet")
    chapters = build_world(CHAPTERS).chapters
    assert chapters is not None
    day = (rows["event_time"].dt.date() - WORLD.start).dt.total_days().to_numpy()
    of_item = chapters.of_item[rows["item_id"].to_numpy() - FIRST_ITEM]
    of_user = (chapters.at_first[rows["user_id"].to_numpy() - FIRST_USER] + day) % 5
    return rows.with_columns(pl.Series("day", day), pl.Series("of_item", of_item), pl.Series("of_user", of_user))


def test_users_move_to_the_next_chapter_every_day(log_with_chapters: pl.DataFrame) -> None:
    current_share = (log_with_chapters["of_item"] == log_with_chapters["of_user"]).mean()
    assert current_share == pytest.approx(0.6 + 0.4 / 5, abs=0.05)
    yesterday = log_with_chapters.select("user_id", pl.col("day") + 1, pl.col("of_item").alias("earlier"))
    pairs = yesterday.join(log_with_chapters, on=["user_id", "day"])
    onwards = ((pairs["of_item"] - pairs["earlier"]) % 5 == 1).mean()
    backwards = ((pairs["of_item"] - pairs["earlier"]) % 5 == 4).mean()
    assert onwards > 0.4 and backwards < 0.2  # the order matters: by chance each is 0.2


def test_clicks_on_the_current_chapter_are_as_frequent_as_planted(log_with_chapters: pl.DataFrame) -> None:
    is_current = pl.col("of_item") == pl.col("of_user")
    rates = log_with_chapters.group_by(is_current.alias("present")).agg(
        pl.col("is_click").mean(), pl.col(Columns.BEST).mean()
    )
    sorted_rates = rates.sort("present")
    assert sorted_rates["is_click"][1] > sorted_rates["is_click"][0] + 0.1
    np.testing.assert_allclose(sorted_rates["is_click"], sorted_rates[Columns.BEST], atol=0.02)


def test_chapters_change_only_the_items_of_impressions(log: pl.DataFrame, log_with_chapters: pl.DataFrame) -> None:
    unchanged_columns = ["impression_id", "event_time", "user_id", "surface", "device", "position"]
    assert log_with_chapters.select(unchanged_columns).equals(log.select(unchanged_columns))
    unchanged_share = (log_with_chapters["item_id"] == log["item_id"]).mean()
    assert unchanged_share == pytest.approx(0.4, abs=0.05)  # the others follow


SESSIONS = WORLD.model_copy(
    update={"chapters": GeneratedChapters(count=5, follow=0.6, effect=1.5, within_session=True)}
)


def test_items_follow_the_chapter_of_the_previous_item_in_a_session() -> None:
    world = build_world(SESSIONS)
    click_model, chapters, part = ClickModel.calibrate(SESSIONS, world), world.chapters, plan_parts(SESSIONS)[1]
    assert chapters is not None
    impressions = draw_impressions(SESSIONS, world, part)
    is_first = impressions.previous < 0
    is_next_chapter = chapters.of_item[impressions.item] == chapters.next_chapter(impressions.previous)
    assert is_first.mean() == pytest.approx(1 / 7, abs=0.02) and not is_next_chapter[is_first].any()
    assert is_next_chapter[~is_first].mean() == pytest.approx(0.6 + 0.4 / 5, abs=0.08)
    # The item before counts in the log-odds, and nothing else of the session does.
    without_previous = replace(impressions, previous=np.full_like(impressions.previous, -1))
    probability, probability_without_previous = (
        click_model.probability(impressions, 1),
        click_model.probability(without_previous, 1),
    )
    log_odds_ratio = np.log(probability / (1 - probability)) - np.log(
        probability_without_previous / (1 - probability_without_previous)
    )
    np.testing.assert_allclose(log_odds_ratio, np.where(is_next_chapter, 1.5 * click_model.scale, 0.0), atol=1e-5)
