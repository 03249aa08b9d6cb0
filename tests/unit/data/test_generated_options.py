"""Options of the generated world: each adds what it declares with a known truth, and moves nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from shortlist.contracts import Columns, best_column
from shortlist.data.best_candidates import best_candidates
from shortlist.data.generate import FIRST_ITEM, FIRST_USER, generate_log
from shortlist.data.lifetimes import Lifetimes
from shortlist.data.synthetic_world import build_world
from shortlist.spec.data import GeneratedSource
from shortlist.storage.artefacts import folder_digest

PLAIN: dict[str, Any] = {"kind": "generated", "rows": 30_000, "users": 1_000, "items": 500, "days": 6}
LIKED = best_column("is_like")


def world(**options: Any) -> GeneratedSource:
    return GeneratedSource.model_validate({**PLAIN, **options})


SHORT_LIVED = world(lifetime={"hours": 4, "effect": 2.0})
DIGEST_OF_PLAIN = "f32e96abace1a3d379caf139bc5cfb1ef5043e6a7f57db81852f55da4cff1d02"
"""Of the log as it was generated before items could be short-lived."""


def value_digest(rows: pl.DataFrame) -> str:
    """Return a digest of all values, whatever the version of the Parquet writer."""
    return sha256(rows.write_csv().encode()).hexdigest()


def written(source: GeneratedSource, folder: Path) -> pl.DataFrame:
    generate_log(source, folder)
    return pl.read_parquet(folder / "impressions" / "*.parquet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("options")


@pytest.fixture(scope="module")
def plain(folder: Path) -> pl.DataFrame:
    return written(world(), folder / "plain")


@pytest.fixture(scope="module")
def liked(folder: Path) -> pl.DataFrame:
    return written(world(likes={"rate": 0.3}), folder / "liked")


@pytest.fixture(scope="module")
def contents(folder: Path) -> pl.DataFrame:
    """The log of a world with contents; its items' table lies in `folder/contents`."""
    return written(world(content={"effect": 2.0}), folder / "contents")


@pytest.fixture(scope="module")
def shortlived(folder: Path) -> pl.DataFrame:
    """The log of a world of short-lived items; its items' table lies in `folder/shortlived`."""
    return written(SHORT_LIVED, folder / "shortlived")


@pytest.fixture(scope="module")
def biased(folder: Path) -> pl.DataFrame:
    return written(world(position_bias={"strength": 3.0}), folder / "biased")


def test_likes_add_their_columns_and_move_nothing_else(plain: pl.DataFrame, liked: pl.DataFrame) -> None:
    assert liked.columns == [*plain.columns, "is_like", LIKED]
    assert liked.select(plain.columns).equals(plain)


def test_likes_follow_clicks_as_often_as_declared_and_planted(liked: pl.DataFrame) -> None:
    assert liked.filter(is_click=0)["is_like"].sum() == 0
    assert float(liked["is_like"].to_numpy().sum() / liked["is_click"].to_numpy().sum()) == pytest.approx(0.3, abs=0.03)
    tenths = liked.with_columns(pl.col(LIKED).qcut(10, labels=[str(n) for n in range(10)]).alias("tenth"))
    rates = tenths.group_by("tenth").agg(pl.col("is_like").mean(), pl.col(LIKED).mean())
    np.testing.assert_allclose(rates["is_like"], rates[LIKED], atol=0.02)


def test_the_best_order_by_likes_is_not_the_best_order_by_clicks(liked: pl.DataFrame) -> None:
    likes, clicks = liked["is_like"], liked["is_click"]
    assert roc_auc_score(likes, liked[LIKED]) > roc_auc_score(likes, liked[Columns.BEST]) + 0.03
    assert roc_auc_score(clicks, liked[Columns.BEST]) > roc_auc_score(clicks, liked[LIKED]) + 0.03


def test_contents_move_neither_users_nor_items_nor_when_they_meet(plain: pl.DataFrame, contents: pl.DataFrame) -> None:
    same = ["impression_id", "event_time", "user_id", "item_id", "surface", "device", "position"]
    assert contents.select(same).equals(plain.select(same))
    tenths = contents.with_columns(pl.col(Columns.BEST).qcut(10, labels=[str(n) for n in range(10)]).alias("tenth"))
    rates = tenths.group_by("tenth").agg(pl.col("is_click").mean(), pl.col(Columns.BEST).mean())
    np.testing.assert_allclose(rates["is_click"], rates[Columns.BEST], atol=0.03)


@pytest.mark.parametrize(("column", "told"), [("text_vector", slice(0, 4)), ("image_vector", slice(4, 8))])
def test_each_vector_predicts_its_half_of_the_appeal_of_unseen_items(
    folder: Path, contents: pl.DataFrame, column: str, told: slice
) -> None:
    items = pl.read_parquet(folder / "contents" / "items.parquet")
    known = build_world(world(content={"effect": 2.0})).content
    assert known is not None
    appeal = known.properties_IK[:, told] @ known.common_K[told]
    other = slice(4, 8) if told.start == 0 else slice(0, 4)
    vectors = items[column].to_numpy()
    predicted = Ridge().fit(vectors[:250], appeal[:250]).predict(vectors[250:])
    assert np.corrcoef(predicted, appeal[250:])[0, 1] > 0.9
    untold = known.properties_IK[:, other] @ known.common_K[other]
    assert abs(np.corrcoef(Ridge().fit(vectors[:250], untold[:250]).predict(vectors[250:]), untold[250:])[0, 1]) < 0.3


def test_titles_tell_what_text_vectors_tell(folder: Path, contents: pl.DataFrame) -> None:
    titles = pl.read_parquet(folder / "contents" / "items.parquet")["title"]
    known = build_world(world(content={"effect": 2.0})).content
    assert known is not None
    assert titles.str.split(" ").list.len().unique().to_list() == [6]
    words = r"fast|loud|wild|sharp|bold", r"calm|slow|gentle|quiet|soft"
    fast, calm = (titles.str.count_matches(pattern).cast(pl.Int64) for pattern in words)
    assert np.corrcoef(fast - calm, known.properties_IK[:, 0])[0, 1] > 0.7


def test_new_items_leave_the_contents_of_the_others() -> None:
    drift = {"kind": "new_items", "from_day": 3}
    before, after = (build_world(world(content={}, drifts=drifts)).content for drifts in ((), (drift,)))
    assert before is not None and after is not None
    assert after.properties_IK.shape[0] == 550
    for old, new in zip(before.item_columns()[1:], after.item_columns()[1:], strict=True):
        assert new.head(500).equals(old)
    assert after.item_columns()[0].head(500).equals(before.item_columns()[0])


def test_the_best_list_of_a_user_is_of_appealing_contents() -> None:
    strong = world(content={"effect": 8.0, "personal": 1.0})
    known = build_world(strong).content
    assert known is not None
    for number in range(3):
        best = best_candidates(strong, pl.Series([FIRST_USER + number]), [strong.start + timedelta(days=2)], 20)
        of_best = known.appeal(np.full(20, number), best[0] - FIRST_ITEM)
        of_all = known.appeal(np.full(500, number), np.arange(500))
        assert of_best.mean() > of_all.mean() + 0.5 * of_all.std()


def test_position_bias_reorders_items_within_a_page_alone(plain: pl.DataFrame, biased: pl.DataFrame) -> None:
    same = ["impression_id", "event_time", "user_id", "surface", "device", "position"]
    assert biased.select(same).equals(plain.select(same))
    shown = [frame.group_by("user_id").agg(pl.col("item_id").sort()).sort("user_id") for frame in (plain, biased)]
    assert shown[0].equals(shown[1])
    assert not biased["item_id"].equals(plain["item_id"])


def test_a_click_is_likelier_at_the_first_position_and_preferred_items_profit(biased: pl.DataFrame) -> None:
    first, planted = biased["first_position_probability"], biased[Columns.BEST]
    at_first = biased["position"] == 1
    assert first.filter(at_first).equals(planted.filter(at_first).alias(first.name))
    assert (first.filter(~at_first) > planted.filter(~at_first)).all()
    often = biased.group_by("item_id").agg(
        pl.len(), pl.col("position").mean(), pl.col(Columns.BEST).mean(), pl.col(first.name).mean()
    ).filter(pl.col("len") > 100)  # fmt: skip
    lost = often[first.name] - often[Columns.BEST]
    assert np.corrcoef(often["position"], lost)[0, 1] > 0.6  # what stands below looks worse than it is
    assert often["position"].to_numpy().std() > 0.5


def test_short_lived_items_are_shown_within_their_lives_alone(shortlived: pl.DataFrame) -> None:
    lives = build_world(SHORT_LIVED).lifetimes
    assert lives is not None
    midnight = datetime.combine(SHORT_LIVED.start, datetime.min.time(), UTC)
    shown_us = (shortlived["event_time"] - midnight).dt.total_microseconds().to_numpy()
    age_us = shown_us - lives.appears_us[shortlived["item_id"].to_numpy() - FIRST_ITEM]
    assert age_us.min() >= 0
    assert age_us.max() < 4 * 3_600_000_000
    assert age_us.max() > 3.9 * 3_600_000_000  # and for all of them


def test_short_lived_items_appear_all_over_the_log(folder: Path, shortlived: pl.DataFrame) -> None:
    lives = build_world(SHORT_LIVED).lifetimes
    assert lives is not None
    hours = lives.appears_us / 3_600_000_000
    of_each = np.histogram(hours, bins=4, range=(-4, 6 * 24))[0]
    np.testing.assert_allclose(of_each, 500 / 4, atol=1)
    assert abs(np.corrcoef(np.arange(500), hours)[0, 1]) < 0.15  # ids do not tell when
    items = pl.read_parquet(folder / "shortlived" / "items.parquet")
    first_shown = shortlived.group_by("item_id").agg(pl.col("event_time").min().dt.date()).join(items, "item_id")
    assert (first_shown["event_time"] >= first_shown["published_date"]).all()
    assert (first_shown["event_time"] <= first_shown["published_date"] + timedelta(days=1)).all()


def test_popular_ones_of_the_items_alive_are_shown_more_often() -> None:
    lives = Lifetimes(np.array([0, 10, 20]), 15, np.zeros(3))
    moments = np.repeat([5, 12, 22, 30], 4_000)
    drawn = lives.draw_items(np.array([3.0, 1.0, 4.0]), moments, np.random.default_rng(1)).reshape(4, -1)
    shares = [np.bincount(row, minlength=3) / 4_000 for row in drawn]
    np.testing.assert_allclose(shares, [[1, 0, 0], [0.75, 0.25, 0], [0, 0.2, 0.8], [0, 0, 1]], atol=0.03)


def test_short_lives_leave_users_and_the_times_of_their_visits(plain: pl.DataFrame, shortlived: pl.DataFrame) -> None:
    same = ["impression_id", "event_time", "user_id", "surface", "device", "position"]
    assert shortlived.columns == plain.columns
    assert shortlived.select(same).equals(plain.select(same))


def test_clicks_on_short_lived_items_happen_as_often_as_planted(shortlived: pl.DataFrame) -> None:
    tenths = shortlived.with_columns(pl.col(Columns.BEST).qcut(10, labels=[str(n) for n in range(10)]).alias("tenth"))
    rates = tenths.group_by("tenth").agg(pl.col("is_click").mean(), pl.col(Columns.BEST).mean())
    np.testing.assert_allclose(rates["is_click"], rates[Columns.BEST], atol=0.03)


def test_only_its_clicks_tell_how_good_a_short_lived_item_is(folder: Path, shortlived: pl.DataFrame) -> None:
    lives = build_world(SHORT_LIVED).lifetimes
    assert lives is not None
    often = shortlived.group_by("item_id").agg(pl.len(), pl.col("is_click", "duration").mean())
    often = often.filter(pl.col("len") > 60).drop_nulls().join(
        pl.read_parquet(folder / "shortlived" / "items.parquet"), "item_id"
    )  # fmt: skip
    assert often.height > 80
    quality = lives.quality[often["item_id"].to_numpy() - FIRST_ITEM]
    assert np.corrcoef(quality, often["is_click"])[0, 1] > 0.7
    of_creator = (
        pl.DataFrame({"creator": build_world(SHORT_LIVED).items.creator, "quality": lives.quality})
        .with_columns((pl.sum("quality").over("creator") - pl.col("quality")) / (pl.len().over("creator") - 1))
        .get_column("quality").fill_nan(0.0)
    )  # fmt: skip
    for told in (often["len"], often["duration"], of_creator[often["item_id"].to_numpy() - FIRST_ITEM]):
        assert abs(np.corrcoef(quality, told)[0, 1]) < 0.35


def test_without_lifetime_the_log_is_that_of_before(folder: Path, plain: pl.DataFrame) -> None:
    written(world(lifetime=None), folder / "null")
    assert folder_digest(folder / "null") == folder_digest(folder / "plain")
    assert value_digest(plain) == DIGEST_OF_PLAIN


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lifetime": {"hours": 0}}, "greater than 0"),
        (
            {"lifetime": {"hours": 0.5}},
            "items: 500 that live for 0.5 hours leave moments of 6 days without any; declare"
            " at least 578, or a longer lifetime.hours",
        ),
        ({"lifetime": {}, "chapters": {}}, "chapters would show items outside their lives"),
        ({"lifetime": {}, "position_bias": {}}, "position_bias would show items outside their lives"),
        ({"lifetime": {}, "drifts": [{"kind": "new_items", "from_day": 3}]}, "drifts of kind new_items would show"),
        ({"content": {"text_width": 2}}, "greater than or equal to 4"),
        ({"likes": {"rate": 1.0}}, "less than 1"),
        ({"position_bias": {"strenght": 1}}, "Extra inputs"),
    ],
)
def test_an_option_out_of_its_bounds_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        world(**options)
