"""Generate the demo log: a folder of Parquet files drawn from a synthetic world, part by part."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from shortlist.contracts import Columns, DataError, best_column, did_you_mean
from shortlist.data.world.click_model import ClickModel
from shortlist.data.world.like_model import LikeModel
from shortlist.data.world.old_recommender import OldRecommender
from shortlist.data.world.random_streams import Floats, Ints, random_stream
from shortlist.data.world.synthetic_world import (
    AGE_GROUPS,
    COUNTRIES,
    DEVICES,
    TAGS_PER_ITEM,
    TOPICS,
    SyntheticWorld,
    build_world,
    mean_over_tags,
)
from shortlist.data.world.traffic import SURFACES, GeneratedImpressions, LogPart, draw_impressions, plan_parts
from shortlist.spec.data import Drift, GeneratedSource
from shortlist.storage.artefacts import atomic_folder
from shortlist.system.progress import progress

FIRST_USER, FIRST_ITEM, FIRST_CREATOR = 100_001, 500_001, 9_001
OLD_POLICY = "old"
"""Policy of the rows of a generated log."""

_USERS_PER_BLOCK = 20_000  # bounds memory
BREAKABLE = ("user_id", "item_id", "surface", "device", "position", "duration", "watch_seconds", "is_click")


def generate_log(source: GeneratedSource, folder: Path) -> None:
    """Write `impressions/part-*.parquet` in time order, `users.parquet` and `items.parquet`, atomically.

    Impressions hold columns known before them, the outcomes `watch_seconds` and `is_click`, and the planted
    `true_probability`; options of the source add columns. Parts are drawn independently, so memory does not grow with
    the rows.

    Raises:
        DataError: A `broken_column` drift names a column that cannot break.
    """
    for drift in source.drifts:
        _check_drift_column(drift)
    world = build_world(source)
    click_model = ClickModel.calibrate(source, world)
    like_model = LikeModel.calibrate(source, click_model) if source.likes is not None else None
    parts = plan_parts(source)
    with atomic_folder(folder) as staging, progress("generate", sum(part.rows for part in parts)) as advance:
        build_users_table(source, world).write_parquet(staging / "users.parquet")
        build_items_table(source, world).write_parquet(staging / "items.parquet")
        (staging / "impressions").mkdir()
        for number, part in enumerate(parts):
            rows = draw_log_rows(source, click_model, part, like_model)
            rows.write_parquet(staging / "impressions" / f"part-{number:05d}.parquet")
            advance(part.rows, "")


def draw_log_rows(
    source: GeneratedSource, click_model: ClickModel, part: LogPart, like_model: LikeModel | None = None
) -> pl.DataFrame:
    """Return the rows of one part in time order."""
    world = click_model.world
    impressions = draw_impressions(source, world, part)
    recommended: list[pl.Series] = []
    if source.recommender is not None:
        impressions, recommended = _recommend_items(source, world, part, impressions)
    probability = click_model.probability(impressions, part.day)
    random = random_stream(source.seed, "outcomes", part.day, part.first_row)
    clicked = random.random(part.rows) < probability
    midnight = datetime.combine(source.start + timedelta(days=part.day), datetime.min.time(), UTC)
    duration = world.items.duration[impressions.item]
    rows = pl.DataFrame(
        {
            "impression_id": np.arange(part.first_row, part.first_row + part.rows),
            "event_time": impressions.time_us + int(midnight.timestamp()) * 1_000_000,
            "user_id": FIRST_USER + impressions.user,
            "item_id": FIRST_ITEM + impressions.item,
            "surface": _decode_names(impressions.surface, SURFACES),
            "device": _decode_names(impressions.device, DEVICES),
            "position": impressions.position,
            "duration": pl.Series(duration).fill_nan(None),
            "watch_seconds": draw_watch_seconds(random, clicked, duration),
            "is_click": clicked.astype(np.int64),
            Columns.BEST: probability,
        },
    ).cast({"event_time": pl.Datetime("us", "UTC")})
    rows = rows.with_columns(*recommended, *_option_columns(source, click_model, like_model, part, impressions, rows))
    for place, drift in enumerate(source.drifts):
        if drift.kind == "broken_column" and drift.holds_on(part.day):
            rows = _break_column(rows, drift, random_stream(source.seed, "broken", place, part.day, part.first_row))
    return rows


def _recommend_items(
    source: GeneratedSource, world: SyntheticWorld, part: LogPart, impressions: GeneratedImpressions
) -> tuple[GeneratedImpressions, list[pl.Series]]:
    """Return the impressions with the items of an old recommender's slates, and the columns that describe the draws."""
    first_rows, request = np.unique(impressions.request, return_inverse=True)
    recommender = OldRecommender.on_day(source, world, part.day)
    slates = recommender.draw(
        impressions.user[first_rows], random_stream(source.seed, "recommended", part.day, part.first_row)
    )
    place = impressions.position - 1
    columns = [
        pl.Series("request_id", part.first_row + impressions.request),
        pl.Series("place", impressions.position),
        pl.Series("policy", [OLD_POLICY], dtype=pl.String).new_from_index(0, part.rows),
        pl.Series("propensity", slates.propensities[request, place]),
        pl.Series("randomized", slates.randomized[request].astype(np.int64)),
    ]
    return replace(impressions, item=slates.items[request, place]), columns


def _option_columns(
    source: GeneratedSource,
    click_model: ClickModel,
    like_model: LikeModel | None,
    part: LogPart,
    impressions: GeneratedImpressions,
    rows: pl.DataFrame,
) -> list[pl.Series]:
    """Return the columns of impressions that the world's options add."""
    columns = []
    if like_model is not None:
        clicked, probability = rows["is_click"].to_numpy(), rows[Columns.BEST].to_numpy()
        like_probability = like_model.probability(impressions, probability)
        random = random_stream(source.seed, "likes", part.day, part.first_row).random(part.rows)
        probability_after_click = np.divide(
            like_probability, probability, out=np.zeros_like(like_probability), where=probability > 0
        )
        columns += [
            pl.Series("is_like", ((clicked == 1) & (random < probability_after_click)).astype(np.int64)),
            pl.Series(best_column("is_like"), like_probability),
        ]
    if source.position_bias is not None:
        columns.append(
            pl.Series("first_position_probability", click_model.probability_at_first_position(impressions, part.day))
        )
    return columns


def draw_watch_seconds(random: np.random.Generator, clicked: np.ndarray, duration: Floats) -> Floats:
    """Draw seconds watched: a large part of its length for a clicked item, about a second for others."""
    length = np.nan_to_num(duration, nan=30.0)
    watched = np.where(clicked, length * random.beta(2.0, 1.2, clicked.size), random.exponential(1.0, clicked.size))
    return np.round(np.minimum(watched, length), 1)


def _break_column(rows: pl.DataFrame, drift: Drift, random: np.random.Generator) -> pl.DataFrame:
    is_broken = pl.Series(random.random(rows.height) < drift.strength)
    return rows.with_columns(pl.when(is_broken).then(None).otherwise(pl.col(drift.column)).alias(drift.column))


def _check_drift_column(drift: Drift) -> None:
    if drift.kind == "broken_column" and drift.column not in BREAKABLE:
        raise DataError(
            f"data.source.drifts: broken_column cannot break '{drift.column}'; the generated log has"
            f" {', '.join(BREAKABLE)}{did_you_mean(drift.column, BREAKABLE)}"
        )


def build_users_table(source: GeneratedSource, world: SyntheticWorld) -> pl.DataFrame:
    """Return the side table of users, one row each."""
    users = world.users
    return pl.DataFrame(
        {
            "user_id": FIRST_USER + np.arange(users.country.size),
            "country": _decode_names(users.country, COUNTRIES),
            "age_group": _decode_names(users.age, AGE_GROUPS),
            "registration_date": _days_to_dates(source, users.registered),
            "liked_items": _draw_liked_items(source, world),
        }
    )


def build_items_table(source: GeneratedSource, world: SyntheticWorld) -> pl.DataFrame:
    """Return the side table of items, one row each, also those of later days."""
    items = world.items
    tag_names = np.array([*TOPICS, "challenge", ""])[items.tags]
    tags = pl.Series(tag_names.reshape(-1)).reshape((-1, TAGS_PER_ITEM)).arr.to_list()
    return pl.DataFrame(
        {
            "item_id": FIRST_ITEM + np.arange(items.creator.size),
            "creator_id": FIRST_CREATOR + items.creator,
            "tags": tags.list.eval(pl.element().filter(pl.element() != "")),
            "published_date": _days_to_dates(source, items.published),
        }
    ).with_columns(world.content.item_columns() if world.content is not None else [])


def _draw_liked_items(source: GeneratedSource, world: SyntheticWorld) -> pl.Series:
    """Draw the items that each user liked before the log begins, each the best by taste of eight popular items."""
    random = random_stream(source.seed, "histories")
    users = world.users
    counts = np.where(users.registered < 0, 8 + random.poisson(32 * (users.activity / users.activity.max()) ** 0.3), 0)
    lists: list[pl.Series] = []
    for first in range(0, counts.size, _USERS_PER_BLOCK):
        block = counts[first : first + _USERS_PER_BLOCK]
        owners = np.arange(first, first + block.size)
        liked = pl.DataFrame(
            {"user": (user := np.repeat(owners, block)), "item": _draw_favourite_items(random, world, user)}
        )
        of_user = liked.group_by("user").agg(pl.col("item") + FIRST_ITEM)
        lists.append(pl.DataFrame({"user": owners}).join(of_user, "user", "left", maintain_order="left")["item"])
    return pl.concat(lists).fill_null(pl.lit([], pl.List(pl.Int64)))


def _draw_favourite_items(random: np.random.Generator, world: SyntheticWorld, user: Ints) -> Ints:
    """Draw eight popular items per entry of `user` and return the one that the user likes most, shape (entries,)."""
    items, tastes = world.items, world.tastes[0]
    old = np.where(items.published < 0, items.popularity, 0.0)[: world.old_items]
    cumulated = np.cumsum(old)
    candidates = np.searchsorted(cumulated, random.random((user.size, 8)) * cumulated[-1], side="right")
    tags = items.tags[candidates]
    liking: Floats = (
        items.country_appeal[tastes.country_row[user][:, None], candidates]
        + items.age_appeal[tastes.age_row[user][:, None], candidates]
        + 4 * mean_over_tags(tastes.favourite[user[:, None, None], tags], tags)
        + random.gumbel(0, 0.3, candidates.shape)
    )
    favourite_items: Ints = candidates[np.arange(user.size), liking.argmax(axis=1)]
    return favourite_items


def _decode_names(codes: Ints, names: tuple[str | None, ...]) -> pl.Series:
    return pl.Series(names, dtype=pl.String).gather(codes)


def _days_to_dates(source: GeneratedSource, days: Ints) -> pl.Series:
    return pl.select((pl.lit(source.start) + pl.duration(days=pl.lit(pl.Series(days)))).cast(pl.Date)).to_series()
