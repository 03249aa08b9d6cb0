"""The demo log: a folder of Parquet files made from a planted truth, part by part."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from shortlist.contracts import Columns, DataError, best_column, did_you_mean
from shortlist.data.click_model import ClickModel
from shortlist.data.like_model import LikeModel
from shortlist.data.random_streams import Floats, Ints, random_stream
from shortlist.data.synthetic_world import (
    AGE_GROUPS,
    COUNTRIES,
    DEVICES,
    TAGS_PER_ITEM,
    TOPICS,
    SyntheticWorld,
    build_world,
    mean_over_tags,
)
from shortlist.data.traffic import SURFACES, Impressions, Part, draw_impressions, plan_parts
from shortlist.spec.data import Drift, GeneratedSource
from shortlist.storage.artefacts import atomic_folder
from shortlist.system.progress import progress

FIRST_USER, FIRST_ITEM, FIRST_CREATOR = 100_001, 500_001, 9_001

_USERS_AT_ONCE = 20_000  # bounds memory
BREAKABLE = ("user_id", "item_id", "surface", "device", "position", "duration", "watch_seconds", "is_click")


def generate(source: GeneratedSource, folder: Path) -> None:
    """Write `impressions/part-*.parquet` in time order, `users.parquet` and `items.parquet`, all or nothing.

    Impressions carry what is known before them, `watch_seconds` and `is_click` known after, and the planted
    `true_probability`; options of the source add columns. A part is drawn on its own, so memory does not grow with the
    rows.

    Raises:
        DataError: A `broken_column` drift names a column that cannot break.
    """
    for drift in source.drifts:
        _check_drift_column(drift)
    world = build_world(source)
    truth = ClickModel.of(source, world)
    likes = LikeModel.of(source, truth) if source.likes is not None else None
    parts = plan_parts(source)
    with atomic_folder(folder) as staging, progress("generate", sum(part.rows for part in parts)) as advance:
        _users_table(source, world).write_parquet(staging / "users.parquet")
        _items_table(source, world).write_parquet(staging / "items.parquet")
        (staging / "impressions").mkdir()
        for number, part in enumerate(parts):
            rows = impressions_of(source, truth, part, likes)
            rows.write_parquet(staging / "impressions" / f"part-{number:05d}.parquet")
            advance(part.rows, "")


def impressions_of(
    source: GeneratedSource, truth: ClickModel, part: Part, likes: LikeModel | None = None
) -> pl.DataFrame:
    """Return the rows of one part in time order."""
    world = truth.world
    shown = draw_impressions(source, world, part)
    probability = truth.probability(shown, part.day)
    random = random_stream(source.seed, "outcomes", part.day, part.first_row)
    clicked = random.random(part.rows) < probability
    midnight = datetime.combine(source.start + timedelta(days=part.day), datetime.min.time(), UTC)
    duration = world.items.duration[shown.item]
    rows = pl.DataFrame(
        {
            "impression_id": np.arange(part.first_row, part.first_row + part.rows),
            "event_time": shown.time_us + int(midnight.timestamp()) * 1_000_000,
            "user_id": FIRST_USER + shown.user,
            "item_id": FIRST_ITEM + shown.item,
            "surface": _named(shown.surface, SURFACES),
            "device": _named(shown.device, DEVICES),
            "position": shown.position,
            "duration": pl.Series(duration).fill_nan(None),
            "watch_seconds": _watch_seconds(random, clicked, duration),
            "is_click": clicked.astype(np.int64),
            Columns.BEST: probability,
        },
    ).cast({"event_time": pl.Datetime("us", "UTC")})
    rows = rows.with_columns(_further(source, truth, likes, part, shown, rows))
    for place, drift in enumerate(source.drifts):
        if drift.kind == "broken_column" and drift.holds_on(part.day):
            rows = _broken(rows, drift, random_stream(source.seed, "broken", place, part.day, part.first_row))
    return rows


def _further(
    source: GeneratedSource, truth: ClickModel, likes: LikeModel | None, part: Part, shown: Impressions,
    rows: pl.DataFrame,
) -> list[pl.Series]:  # fmt: skip
    """Return the columns that options of the world add to impressions."""
    found = []
    if likes is not None:
        clicked, probability = rows["is_click"].to_numpy(), rows[Columns.BEST].to_numpy()
        liked = likes.probability(shown, probability)
        random = random_stream(source.seed, "likes", part.day, part.first_row).random(part.rows)
        after_click = np.divide(liked, probability, out=np.zeros_like(liked), where=probability > 0)
        found += [
            pl.Series("is_like", ((clicked == 1) & (random < after_click)).astype(np.int64)),
            pl.Series(best_column("is_like"), liked),
        ]
    if source.position_bias is not None:
        found.append(pl.Series("first_position_probability", truth.at_first_position(shown, part.day)))
    return found


def _watch_seconds(random: np.random.Generator, clicked: np.ndarray, duration: Floats) -> Floats:
    """Return seconds watched: a clicked item for a good part of its length, another one for a glance."""
    length = np.nan_to_num(duration, nan=30.0)
    watched = np.where(clicked, length * random.beta(2.0, 1.2, clicked.size), random.exponential(1.0, clicked.size))
    return np.round(np.minimum(watched, length), 1)


def _broken(rows: pl.DataFrame, drift: Drift, random: np.random.Generator) -> pl.DataFrame:
    hit = pl.Series(random.random(rows.height) < drift.strength)
    return rows.with_columns(pl.when(hit).then(None).otherwise(pl.col(drift.column)).alias(drift.column))


def _check_drift_column(drift: Drift) -> None:
    if drift.kind == "broken_column" and drift.column not in BREAKABLE:
        raise DataError(
            f"data.source.drifts: broken_column cannot break '{drift.column}'; the generated log has"
            f" {', '.join(BREAKABLE)}{did_you_mean(drift.column, BREAKABLE)}"
        )


def _users_table(source: GeneratedSource, world: SyntheticWorld) -> pl.DataFrame:
    users = world.users
    return pl.DataFrame(
        {
            "user_id": FIRST_USER + np.arange(users.country.size),
            "country": _named(users.country, COUNTRIES),
            "age_group": _named(users.age, AGE_GROUPS),
            "registration_date": _dates(source, users.registered),
            "liked_items": _liked_items(source, world),
        }
    )


def _items_table(source: GeneratedSource, world: SyntheticWorld) -> pl.DataFrame:
    items = world.items
    words = np.array([*TOPICS, "challenge", ""])[items.tags]
    tags = pl.Series(words.reshape(-1)).reshape((-1, TAGS_PER_ITEM)).arr.to_list()
    return pl.DataFrame(
        {
            "item_id": FIRST_ITEM + np.arange(items.creator.size),
            "creator_id": FIRST_CREATOR + items.creator,
            "tags": tags.list.eval(pl.element().filter(pl.element() != "")),
            "published_date": _dates(source, items.published),
        }
    ).with_columns(world.content.columns() if world.content is not None else [])


def _liked_items(source: GeneratedSource, world: SyntheticWorld) -> pl.Series:
    """Return per user the items liked before the log began: each the one most to their taste of a few popular ones."""
    random = random_stream(source.seed, "histories")
    users = world.users
    counts = np.where(users.registered < 0, 8 + random.poisson(32 * (users.activity / users.activity.max()) ** 0.3), 0)
    lists: list[pl.Series] = []
    for first in range(0, counts.size, _USERS_AT_ONCE):
        block = counts[first : first + _USERS_AT_ONCE]
        owners = np.arange(first, first + block.size)
        liked = pl.DataFrame({"user": (user := np.repeat(owners, block)), "item": _favoured(random, world, user)})
        of_user = liked.group_by("user").agg(pl.col("item") + FIRST_ITEM)
        lists.append(pl.DataFrame({"user": owners}).join(of_user, "user", "left", maintain_order="left")["item"])
    return pl.concat(lists).fill_null(pl.lit([], pl.List(pl.Int64)))


def _favoured(random: np.random.Generator, world: SyntheticWorld, user: Ints) -> Ints:
    """Return, for every entry of users, the item they like most of a few popular ones."""
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
    chosen: Ints = candidates[np.arange(user.size), liking.argmax(axis=1)]
    return chosen


def _named(codes: Ints, names: tuple[str | None, ...]) -> pl.Series:
    return pl.Series(names, dtype=pl.String).gather(codes)


def _dates(source: GeneratedSource, days: Ints) -> pl.Series:
    return pl.select((pl.lit(source.start) + pl.duration(days=pl.lit(pl.Series(days)))).cast(pl.Date)).to_series()
