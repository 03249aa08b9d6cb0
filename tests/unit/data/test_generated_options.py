"""Options of the generated world: each adds its columns with known probabilities and changes nothing else."""

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
from shortlist.data.world.generate import FIRST_ITEM, generate_log
from shortlist.data.world.lifetimes import Lifetimes
from shortlist.data.world.synthetic_world import build_world
from shortlist.spec.data import GeneratedSource
from shortlist.storage.artefacts import folder_digest

PLAIN: dict[str, Any] = {"kind": "generated", "rows": 30_000, "users": 1_000, "items": 500, "days": 6}
LIKE_PROBABILITY = best_column("is_like")


def build_source(**options: Any) -> GeneratedSource:
    return GeneratedSource.model_validate({**PLAIN, **options})


SHORT_LIVED = build_source(lifetime={"hours": 4, "effect": 2.0})
DIGEST_OF_PLAIN = "f32e96abace1a3d379caf139bc5cfb1ef5043e6a7f57db81852f55da4cff1d02"
"""Digest of the log as generated before the option `lifetime` existed."""


def value_digest(rows: pl.DataFrame) -> str:
    """Return a digest of all values, independent of the Parquet writer's version."""
    return sha256(rows.write_csv().encode()).hexdigest()


def generate_rows(source: GeneratedSource, folder: Path) -> pl.DataFrame:
    generate_log(source, folder)
    return pl.read_parquet(folder / "impressions" / "*.parquet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("options")


@pytest.fixture(scope="module")
def plain_log(folder: Path) -> pl.DataFrame:
    return generate_rows(build_source(), folder / "plain")


@pytest.fixture(scope="module")
def log_with_likes(folder: Path) -> pl.DataFrame:
    return generate_rows(build_source(likes={"rate": 0.3}), folder / "liked")


@pytest.fixture(scope="module")
def log_with_contents(folder: Path) -> pl.DataFrame:
    """The log of a world with contents; its items' table lies in `folder/contents`."""
    return generate_rows(build_source(content={"effect": 2.0}), folder / "contents")


@pytest.fixture(scope="module")
def log_of_short_lived(folder: Path) -> pl.DataFrame:
    """The log of a world of short-lived items; its items' table lies in `folder/shortlived`."""
    return generate_rows(SHORT_LIVED, folder / "shortlived")


@pytest.fixture(scope="module")
def log_with_bias(folder: Path) -> pl.DataFrame:
    return generate_rows(build_source(position_bias={"strength": 3.0}), folder / "biased")


def test_likes_add_columns_and_change_no_other_column(plain_log: pl.DataFrame, log_with_likes: pl.DataFrame) -> None:
    assert log_with_likes.columns == [*plain_log.columns, "is_like", LIKE_PROBABILITY]
    assert log_with_likes.select(plain_log.columns).equals(plain_log)


def test_likes_are_as_frequent_as_declared_and_planted(log_with_likes: pl.DataFrame) -> None:
    assert log_with_likes.filter(is_click=0)["is_like"].sum() == 0
    assert float(
        log_with_likes["is_like"].to_numpy().sum() / log_with_likes["is_click"].to_numpy().sum()
    ) == pytest.approx(0.3, abs=0.03)
    tenths = log_with_likes.with_columns(
        pl.col(LIKE_PROBABILITY).qcut(10, labels=[str(n) for n in range(10)]).alias("tenth")
    )
    rates = tenths.group_by("tenth").agg(pl.col("is_like").mean(), pl.col(LIKE_PROBABILITY).mean())
    np.testing.assert_allclose(rates["is_like"], rates[LIKE_PROBABILITY], atol=0.02)


def test_the_best_order_by_likes_is_not_the_best_order_by_clicks(log_with_likes: pl.DataFrame) -> None:
    likes, clicks = log_with_likes["is_like"], log_with_likes["is_click"]
    assert (
        roc_auc_score(likes, log_with_likes[LIKE_PROBABILITY])
        > roc_auc_score(likes, log_with_likes[Columns.BEST]) + 0.03
    )
    assert (
        roc_auc_score(clicks, log_with_likes[Columns.BEST])
        > roc_auc_score(clicks, log_with_likes[LIKE_PROBABILITY]) + 0.03
    )


def test_contents_do_not_change_the_shown_items(plain_log: pl.DataFrame, log_with_contents: pl.DataFrame) -> None:
    unchanged_columns = ["impression_id", "event_time", "user_id", "item_id", "surface", "device", "position"]
    assert log_with_contents.select(unchanged_columns).equals(plain_log.select(unchanged_columns))
    tenths = log_with_contents.with_columns(
        pl.col(Columns.BEST).qcut(10, labels=[str(n) for n in range(10)]).alias("tenth")
    )
    rates = tenths.group_by("tenth").agg(pl.col("is_click").mean(), pl.col(Columns.BEST).mean())
    np.testing.assert_allclose(rates["is_click"], rates[Columns.BEST], atol=0.03)


@pytest.mark.parametrize(("column", "properties"), [("text_vector", slice(0, 4)), ("image_vector", slice(4, 8))])
def test_each_vector_predicts_its_half_of_the_appeal_of_unseen_items(
    folder: Path, log_with_contents: pl.DataFrame, column: str, properties: slice
) -> None:
    items = pl.read_parquet(folder / "contents" / "items.parquet")
    content = build_world(build_source(content={"effect": 2.0})).content
    assert content is not None
    appeal = content.properties_IK[:, properties] @ content.common_K[properties]
    other_properties = slice(4, 8) if properties.start == 0 else slice(0, 4)
    vectors = items[column].to_numpy()
    predicted = Ridge().fit(vectors[:250], appeal[:250]).predict(vectors[250:])
    assert np.corrcoef(predicted, appeal[250:])[0, 1] > 0.9
    other_appeal = content.properties_IK[:, other_properties] @ content.common_K[other_properties]
    assert (
        abs(
            np.corrcoef(Ridge().fit(vectors[:250], other_appeal[:250]).predict(vectors[250:]), other_appeal[250:])[0, 1]
        )
        < 0.3
    )


def test_titles_express_the_text_properties(folder: Path, log_with_contents: pl.DataFrame) -> None:
    titles = pl.read_parquet(folder / "contents" / "items.parquet")["title"]
    content = build_world(build_source(content={"effect": 2.0})).content
    assert content is not None
    assert titles.str.split(" ").list.len().unique().to_list() == [6]
    word_patterns = r"fast|loud|wild|sharp|bold", r"calm|slow|gentle|quiet|soft"
    fast_words, calm_words = (titles.str.count_matches(pattern).cast(pl.Int64) for pattern in word_patterns)
    assert np.corrcoef(fast_words - calm_words, content.properties_IK[:, 0])[0, 1] > 0.7


def test_new_items_do_not_change_the_contents_of_other_items() -> None:
    drift = {"kind": "new_items", "from_day": 3}
    content_without_drift, content_with_drift = (
        build_world(build_source(content={}, drifts=drifts)).content for drifts in ((), (drift,))
    )
    assert content_without_drift is not None and content_with_drift is not None
    assert content_with_drift.properties_IK.shape[0] == 550
    for old, new in zip(content_without_drift.item_columns()[1:], content_with_drift.item_columns()[1:], strict=True):
        assert new.head(500).equals(old)
    assert content_with_drift.item_columns()[0].head(500).equals(content_without_drift.item_columns()[0])


def test_position_bias_only_reorders_items_within_a_page(plain_log: pl.DataFrame, log_with_bias: pl.DataFrame) -> None:
    unchanged_columns = ["impression_id", "event_time", "user_id", "surface", "device", "position"]
    assert log_with_bias.select(unchanged_columns).equals(plain_log.select(unchanged_columns))
    items_by_user = [
        frame.group_by("user_id").agg(pl.col("item_id").sort()).sort("user_id") for frame in (plain_log, log_with_bias)
    ]
    assert items_by_user[0].equals(items_by_user[1])
    assert not log_with_bias["item_id"].equals(plain_log["item_id"])


def test_clicks_are_likelier_at_the_first_position(log_with_bias: pl.DataFrame) -> None:
    first, planted = log_with_bias["first_position_probability"], log_with_bias[Columns.BEST]
    is_first = log_with_bias["position"] == 1
    assert first.filter(is_first).equals(planted.filter(is_first).alias(first.name))
    assert (first.filter(~is_first) > planted.filter(~is_first)).all()
    frequent_items = log_with_bias.group_by("item_id").agg(
        pl.len(), pl.col("position").mean(), pl.col(Columns.BEST).mean(), pl.col(first.name).mean()
    ).filter(pl.col("len") > 100)  # fmt: skip
    probability_loss = frequent_items[first.name] - frequent_items[Columns.BEST]
    assert (
        np.corrcoef(frequent_items["position"], probability_loss)[0, 1] > 0.6
    )  # what stands below looks worse than it is
    assert frequent_items["position"].to_numpy().std() > 0.5


def test_short_lived_items_are_shown_only_within_their_lifetime(log_of_short_lived: pl.DataFrame) -> None:
    lifetimes = build_world(SHORT_LIVED).lifetimes
    assert lifetimes is not None
    midnight = datetime.combine(SHORT_LIVED.start, datetime.min.time(), UTC)
    shown_us = (log_of_short_lived["event_time"] - midnight).dt.total_microseconds().to_numpy()
    age_us = shown_us - lifetimes.appears_us[log_of_short_lived["item_id"].to_numpy() - FIRST_ITEM]
    assert age_us.min() >= 0
    assert age_us.max() < 4 * 3_600_000_000
    assert age_us.max() > 3.9 * 3_600_000_000  # and for all of them


def test_short_lived_items_appear_evenly_over_the_log(folder: Path, log_of_short_lived: pl.DataFrame) -> None:
    lifetimes = build_world(SHORT_LIVED).lifetimes
    assert lifetimes is not None
    hours = lifetimes.appears_us / 3_600_000_000
    items_per_bin = np.histogram(hours, bins=4, range=(-4, 6 * 24))[0]
    np.testing.assert_allclose(items_per_bin, 500 / 4, atol=1)
    assert abs(np.corrcoef(np.arange(500), hours)[0, 1]) < 0.15  # ids do not tell when
    items = pl.read_parquet(folder / "shortlived" / "items.parquet")
    first_shown = (
        log_of_short_lived.group_by("item_id").agg(pl.col("event_time").min().dt.date()).join(items, "item_id")
    )
    assert (first_shown["event_time"] >= first_shown["published_date"]).all()
    assert (first_shown["event_time"] <= first_shown["published_date"] + timedelta(days=1)).all()


def test_items_in_their_lifetime_are_drawn_by_popularity() -> None:
    lifetimes = Lifetimes(np.array([0, 10, 20]), 15, np.zeros(3))
    moments = np.repeat([5, 12, 22, 30], 4_000)
    drawn_items = lifetimes.draw_items(np.array([3.0, 1.0, 4.0]), moments, np.random.default_rng(1)).reshape(4, -1)
    shares = [np.bincount(row, minlength=3) / 4_000 for row in drawn_items]
    np.testing.assert_allclose(shares, [[1, 0, 0], [0.75, 0.25, 0], [0, 0.2, 0.8], [0, 0, 1]], atol=0.03)


def test_lifetimes_change_only_the_items_of_impressions(
    plain_log: pl.DataFrame, log_of_short_lived: pl.DataFrame
) -> None:
    unchanged_columns = ["impression_id", "event_time", "user_id", "surface", "device", "position"]
    assert log_of_short_lived.columns == plain_log.columns
    assert log_of_short_lived.select(unchanged_columns).equals(plain_log.select(unchanged_columns))


def test_clicks_on_short_lived_items_are_as_frequent_as_planted(log_of_short_lived: pl.DataFrame) -> None:
    tenths = log_of_short_lived.with_columns(
        pl.col(Columns.BEST).qcut(10, labels=[str(n) for n in range(10)]).alias("tenth")
    )
    rates = tenths.group_by("tenth").agg(pl.col("is_click").mean(), pl.col(Columns.BEST).mean())
    np.testing.assert_allclose(rates["is_click"], rates[Columns.BEST], atol=0.03)


def test_the_quality_of_a_short_lived_item_correlates_only_with_its_clicks(
    folder: Path, log_of_short_lived: pl.DataFrame
) -> None:
    lifetimes = build_world(SHORT_LIVED).lifetimes
    assert lifetimes is not None
    frequent_items = log_of_short_lived.group_by("item_id").agg(pl.len(), pl.col("is_click", "duration").mean())
    frequent_items = frequent_items.filter(pl.col("len") > 60).drop_nulls().join(
        pl.read_parquet(folder / "shortlived" / "items.parquet"), "item_id"
    )  # fmt: skip
    assert frequent_items.height > 80
    quality = lifetimes.quality[frequent_items["item_id"].to_numpy() - FIRST_ITEM]
    assert np.corrcoef(quality, frequent_items["is_click"])[0, 1] > 0.7
    creator_quality = (
        pl.DataFrame({"creator": build_world(SHORT_LIVED).items.creator, "quality": lifetimes.quality})
        .with_columns((pl.sum("quality").over("creator") - pl.col("quality")) / (pl.len().over("creator") - 1))
        .get_column("quality").fill_nan(0.0)
    )  # fmt: skip
    for item_property in (
        frequent_items["len"],
        frequent_items["duration"],
        creator_quality[frequent_items["item_id"].to_numpy() - FIRST_ITEM],
    ):
        assert abs(np.corrcoef(quality, item_property)[0, 1]) < 0.35


def test_a_log_without_lifetime_is_unchanged(folder: Path, plain_log: pl.DataFrame) -> None:
    generate_rows(build_source(lifetime=None), folder / "null")
    assert folder_digest(folder / "null") == folder_digest(folder / "plain")
    assert value_digest(plain_log) == DIGEST_OF_PLAIN


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
        build_source(**options)
