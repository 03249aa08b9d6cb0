"""The traffic of a generated log: visits of users, and the items shown to them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

import numpy as np

from shortlist.data.world.random_streams import Floats, Ints, random_stream
from shortlist.data.world.synthetic_world import DEVICES, FIRST_OF_SESSION, SyntheticWorld
from shortlist.spec.data import GeneratedSource

PART_ROWS = 250_000
"""Most impressions of a part; parts are drawn one by one, so this bounds memory."""
SURFACES = ("home", "related", "search", "notification")
SLOTS = 10

_SURFACE_SHARE = np.array([0.55, 0.22, 0.15, 0.08])
SECONDS_BETWEEN_IMPRESSIONS = 35.0
_DAY_US = 86_400_000_000
# Visits per hour of the day: a quiet night, lunch, a long evening; later and more even at the weekend.
_WORKDAY = np.array([3, 2, 1, 1, 1, 2, 4, 6, 6, 5, 5, 6, 8, 7, 6, 6, 6, 7, 9, 11, 13, 13, 10, 6], float)
_WEEKEND = np.array([6, 4, 3, 2, 1, 1, 2, 3, 5, 7, 8, 9, 9, 9, 8, 8, 8, 8, 9, 11, 12, 12, 11, 8], float)
_WEEKDAY_VOLUME = np.array([1.0, 0.97, 0.97, 1.0, 1.08, 1.25, 1.22])


@dataclass(frozen=True)
class LogPart:
    """A part of a log: its day, its interval of that day, its rows and its first row's number."""

    day: int
    share: tuple[float, float]
    rows: int
    first_row: int


@dataclass(frozen=True)
class GeneratedImpressions:
    """Impressions of one part in time order; arrays of shape (rows,)."""

    time_us: Ints
    """Microseconds since the day's midnight."""
    user: Ints
    item: Ints
    surface: Ints
    device: Ints
    position: Ints
    previous: Ints
    """Previous item of the same session; -1 for the first one."""
    request: Ints
    """Row of the first impression of the same page of a visit, which is one request."""


def plan_parts(source: GeneratedSource) -> list[LogPart]:
    """Return the parts of a log; a volume collapse does not change the days before it."""
    parts: list[LogPart] = []
    for day, rows in enumerate(_draw_volumes(source)):
        pieces = -(-rows // PART_ROWS)
        borders = [rows * piece // pieces for piece in range(pieces + 1)] if pieces else []
        for first, last in pairwise(borders):
            parts.append(
                LogPart(
                    day, (first / rows, last / rows), last - first, parts[-1].first_row + parts[-1].rows if parts else 0
                )
            )
    return parts


def draw_impressions(source: GeneratedSource, world: SyntheticWorld, part: LogPart) -> GeneratedImpressions:
    """Draw the impressions of a part, independently of other parts."""
    random = random_stream(source.seed, "traffic", part.day, part.first_row)
    visit, place = _draw_sessions(random, part.rows)
    visits = int(visit[-1]) + 1
    visitor = _draw_weighted(random, np.where(world.users.registered <= part.day, world.users.activity, 0.0), visits)
    surface, device = draw_contexts(random, world, visitor)
    time_us = _draw_times(random, hourly_visits(source, part.day), part.share, visit, place)
    order = np.argsort(time_us, kind="stable")
    visit, place = visit[order], place[order]
    if world.lifetimes is None:
        item = _draw_items(source, world, part, random)
    else:
        item = world.lifetimes.draw_items(world.items.popularity, time_us[order] + part.day * _DAY_US, random)
    if world.chapters is not None:
        item = _replace_by_chapter_items(source, world, part, visitor[visit], visit, place, item)
    if source.position_bias is not None:
        item = _reorder_pages(source, world, part, visit, place, item)
    slots, previous = place % SLOTS + 1, _previous_items(visit, place, item)
    pages = visit * part.rows + place // SLOTS
    _, first_row, page = np.unique(pages, return_index=True, return_inverse=True)
    return GeneratedImpressions(
        time_us[order], visitor[visit], item, surface[visit], device[visit], slots, previous, first_row[page]
    )


def draw_contexts(random: np.random.Generator, world: SyntheticWorld, users: Ints) -> tuple[Ints, Ints]:
    """Draw the surface and the device of each visit, shape (visits,) each."""
    surface = random.choice(len(SURFACES), users.size, p=_SURFACE_SHARE)
    own_device = random.random(users.size) < 0.85
    return surface, np.where(own_device, world.users.device[users], random.integers(0, len(DEVICES), users.size))


def _draw_volumes(source: GeneratedSource) -> list[int]:
    weekday = (source.start.weekday() + np.arange(source.days)) % 7
    noise = random_stream(source.seed, "volume").normal(1, 0.03, source.days)
    weight = _WEEKDAY_VOLUME[weekday] * np.clip(noise, 0.9, 1.1)
    borders = np.round(source.rows * np.cumsum(weight) / weight.sum()).astype(np.int64)
    rows = np.diff(borders, prepend=0)
    for drift in source.drifts:
        if drift.kind == "volume_collapse":
            collapsed = slice(drift.from_day, drift.until_day)
            rows[collapsed] = np.round(rows[collapsed] * (1 - drift.strength))
    return [int(count) for count in rows]


def _draw_sessions(random: np.random.Generator, rows: int) -> tuple[Ints, Ints]:
    """Draw each row's session and its place in it; sessions have geometric lengths, and the last one is cut."""
    lengths = random.geometric(FIRST_OF_SESSION, rows)
    ends = np.cumsum(lengths)
    visit = np.searchsorted(ends, np.arange(rows), side="right")
    return visit, np.arange(rows) - (ends - lengths)[visit]


def hourly_visits(source: GeneratedSource, day: int) -> Floats:
    """Return the relative number of visits in each hour of a day, shape (24,)."""
    weekend = (source.start + timedelta(days=day)).weekday() >= 5
    return _WEEKEND if weekend else _WORKDAY


def _draw_times(
    random: np.random.Generator, hours: Floats, share: tuple[float, float], visit: Ints, place: Ints
) -> Ints:
    """Draw microseconds since midnight, with whole sessions within the part's interval, so that parts are in order."""
    cumulated = np.concatenate([[0.0], np.cumsum(hours)]) / hours.sum()
    border = np.interp(share, cumulated, np.arange(25) / 24) * _DAY_US
    start = np.interp(random.uniform(*share, int(visit[-1]) + 1), cumulated, np.arange(25) / 24) * _DAY_US
    gaps = np.where(place > 0, random.exponential(SECONDS_BETWEEN_IMPRESSIONS * 1e6, visit.size) + 1e6, 0.0)
    elapsed = np.cumsum(gaps)
    first = np.flatnonzero(place == 0)
    elapsed -= elapsed[first][visit]
    length = np.maximum.reduceat(elapsed, first)
    room = border[1] - border[0]
    squeeze = np.minimum(1.0, room / np.maximum(length, 1.0))
    length *= squeeze
    # All starts move a little, so that sessions that would cross the border do not all end at it.
    start = border[0] + (start - border[0]) * (1 - length / room)
    time_us: Ints = np.floor(start[visit] + elapsed * squeeze[visit]).astype(np.int64)
    return time_us


def _draw_items(source: GeneratedSource, world: SyntheticWorld, part: LogPart, random: np.random.Generator) -> Ints:
    """Draw the item of each row by popularity, with newer items more often and none before its publication."""
    item = _draw_weighted(random, item_exposure(world, part.day), part.rows)
    for place, drift in enumerate(source.drifts):
        if drift.kind == "new_items" and drift.holds_on(part.day):
            arrivals = random_stream(source.seed, "arrivals", place, part.day, part.first_row)
            new_item_rows = np.flatnonzero(arrivals.random(part.rows) < drift.strength)
            new_items = world.new_items[place]
            item[new_item_rows] = new_items.start + _draw_weighted(
                arrivals, world.items.popularity[new_items.start : new_items.stop], new_item_rows.size
            )
    return item


def item_exposure(world: SyntheticWorld, day: int) -> Floats:
    """Return the weight of each old item among the impressions of a day, shape (old_items,)."""
    age = day - world.items.published[: world.old_items]
    return np.where(age >= 0, world.items.popularity[: world.old_items] * (1 + np.exp(-np.maximum(age, 0) / 7)), 0.0)


def _replace_by_chapter_items(
    source: GeneratedSource, world: SyntheticWorld, part: LogPart, user: Ints, visit: Ints, place: Ints, item: Ints
) -> Ints:  # fmt: skip
    """Return the item of each row, with some rows redrawn from the items of the user's current chapter."""
    chapters = world.chapters
    assert chapters is not None
    random = random_stream(source.seed, "followed", part.day, part.first_row)
    follows = random.random(part.rows) < chapters.follow
    exposure, items = item_exposure(world, part.day), item.copy()
    steps = range(1, int(place.max(initial=0)) + 1) if chapters.within_session else [None]
    for step in steps:  # within a session, an item depends on the one before
        rows = np.flatnonzero(follows & (place == step)) if step is not None else np.flatnonzero(follows)
        previous = _previous_items(visit, place, items)[rows]
        chapter = chapters.next_chapter(previous) if chapters.within_session else chapters.of_user(user[rows], part.day)
        for number in range(chapters.count):
            chapter_rows = rows[chapter == number]
            weight = np.where(chapters.of_item[: world.old_items] == number, exposure, 0.0)
            if chapter_rows.size and weight.any():
                items[chapter_rows] = _draw_weighted(random, weight, chapter_rows.size)
    return items


def _previous_items(visit: Ints, place: Ints, item: Ints) -> Ints:
    """Return the previous item of the same session, -1 for the first one; rows may be in any order."""
    order = np.lexsort((place, visit))
    previous_in_order = np.where(place[order] > 0, np.roll(item[order], 1), -1)
    previous_items = np.empty_like(item)
    previous_items[order] = previous_in_order
    return previous_items


def _reorder_pages(
    source: GeneratedSource, world: SyntheticWorld, part: LogPart, visit: Ints, place: Ints, item: Ints
) -> Ints:  # fmt: skip
    """Return the item of each row after an earlier ranker has ordered the items on each page of a visit."""
    assert source.position_bias is not None
    preference = random_stream(source.seed, "preferred items").normal(0, 1, world.items.creator.size)
    noise = random_stream(source.seed, "ranked", part.day, part.first_row).normal(0, 1, part.rows)
    score = source.position_bias.strength * preference[item] + noise
    page = place // SLOTS
    position_order, score_order = np.lexsort((place, page, visit)), np.lexsort((-score, page, visit))
    items = item.copy()
    items[position_order] = item[score_order]
    return items


def impression_shares(source: GeneratedSource, world: SyntheticWorld, day: int) -> Floats:
    """Return each item's share of a day's impressions that do not follow chapters, shape (items,)."""
    shares = np.zeros(world.items.creator.size)
    old_exposure = item_exposure(world, day)
    shares[: world.old_items] = old_exposure / old_exposure.sum()
    for place, drift in enumerate(source.drifts):
        if drift.kind == "new_items" and drift.holds_on(day):
            new_items = world.new_items[place]
            new_popularity = world.items.popularity[new_items.start : new_items.stop]
            shares *= 1 - drift.strength
            shares[new_items.start : new_items.stop] += drift.strength * new_popularity / new_popularity.sum()
    return shares


def _draw_weighted(random: np.random.Generator, weight: Floats, count: int) -> Ints:
    """Draw indices with replacement in proportion to their weights."""
    cumulated = np.cumsum(weight)
    indices: Ints = np.searchsorted(cumulated, random.random(count) * cumulated[-1], side="right")
    return indices
