"""The traffic of a generated log: who comes when, and what is shown where."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

import numpy as np

from shortlist.data.random_streams import Floats, Ints, random_stream
from shortlist.data.synthetic_world import DEVICES, FIRST_OF_SESSION, SyntheticWorld
from shortlist.spec.data import GeneratedSource

PART_ROWS = 250_000
"""Most impressions of a part; parts are made one by one, so this bounds memory."""
SURFACES = ("home", "related", "search", "notification")
SLOTS = 10

_SURFACE_SHARE = np.array([0.55, 0.22, 0.15, 0.08])
_SECONDS_BETWEEN_IMPRESSIONS = 35.0
_DAY_US = 86_400_000_000
# Visits per hour of the day: a quiet night, lunch, a long evening; later and more even at the weekend.
_WORKDAY = np.array([3, 2, 1, 1, 1, 2, 4, 6, 6, 5, 5, 6, 8, 7, 6, 6, 6, 7, 9, 11, 13, 13, 10, 6], float)
_WEEKEND = np.array([6, 4, 3, 2, 1, 1, 2, 3, 5, 7, 8, 9, 9, 9, 8, 8, 8, 8, 9, 11, 12, 12, 11, 8], float)
_WEEKDAY_VOLUME = np.array([1.0, 0.97, 0.97, 1.0, 1.08, 1.25, 1.22])


@dataclass(frozen=True)
class Part:
    """The place of a part in a log: its day, its share of that day, its rows and its first row's number."""

    day: int
    share: tuple[float, float]
    rows: int
    first_row: int


@dataclass(frozen=True)
class Impressions:
    """Impressions of one part in time order; arrays of shape (rows,)."""

    time_us: Ints
    """Microseconds since the day's midnight."""
    user: Ints
    item: Ints
    surface: Ints
    device: Ints
    position: Ints
    previous: Ints
    """The item shown before in the same session; -1 for the first one."""


def plan_parts(source: GeneratedSource) -> list[Part]:
    """Return the parts of a log; the days before a collapse are those of the log without it."""
    parts: list[Part] = []
    for day, rows in enumerate(_volumes(source)):
        pieces = -(-rows // PART_ROWS)
        borders = [rows * piece // pieces for piece in range(pieces + 1)] if pieces else []
        for first, last in pairwise(borders):
            parts.append(
                Part(
                    day, (first / rows, last / rows), last - first, parts[-1].first_row + parts[-1].rows if parts else 0
                )
            )
    return parts


def draw_impressions(source: GeneratedSource, world: SyntheticWorld, part: Part) -> Impressions:
    """Return the impressions of a part; the same for the same seed, whatever parts were made before."""
    random = random_stream(source.seed, "traffic", part.day, part.first_row)
    visit, place = _sessions(random, part.rows)
    visits = int(visit[-1]) + 1
    visitor = _draw(random, np.where(world.users.registered <= part.day, world.users.activity, 0.0), visits)
    surface = random.choice(len(SURFACES), visits, p=_SURFACE_SHARE)
    own_device = random.random(visits) < 0.85
    device = np.where(own_device, world.users.device[visitor], random.integers(0, len(DEVICES), visits))
    time_us = _times(random, _hours(source, part.day), part.share, visit, place)
    order = np.argsort(time_us, kind="stable")
    visit, place = visit[order], place[order]
    if world.lifetimes is None:
        item = _shown(source, world, part, random)
    else:
        item = world.lifetimes.draw(world.items.popularity, time_us[order] + part.day * _DAY_US, random)
    if world.chapters is not None:
        item = _of_chapters(source, world, part, visitor[visit], visit, place, item)
    if source.position_bias is not None:
        item = _as_ranked(source, world, part, visit, place, item)
    slots, previous = place % SLOTS + 1, _previous(visit, place, item)
    return Impressions(time_us[order], visitor[visit], item, surface[visit], device[visit], slots, previous)


def _volumes(source: GeneratedSource) -> list[int]:
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


def _sessions(random: np.random.Generator, rows: int) -> tuple[Ints, Ints]:
    """Return each row's session and its place in it; sessions have geometric lengths, the last one is cut."""
    lengths = random.geometric(FIRST_OF_SESSION, rows)
    ends = np.cumsum(lengths)
    visit = np.searchsorted(ends, np.arange(rows), side="right")
    return visit, np.arange(rows) - (ends - lengths)[visit]


def _hours(source: GeneratedSource, day: int) -> Floats:
    weekend = (source.start + timedelta(days=day)).weekday() >= 5
    return _WEEKEND if weekend else _WORKDAY


def _times(random: np.random.Generator, hours: Floats, share: tuple[float, float], visit: Ints, place: Ints) -> Ints:
    """Return microseconds since midnight; whole sessions stay between the part's borders, so parts follow in time."""
    cumulated = np.concatenate([[0.0], np.cumsum(hours)]) / hours.sum()
    border = np.interp(share, cumulated, np.arange(25) / 24) * _DAY_US
    start = np.interp(random.uniform(*share, int(visit[-1]) + 1), cumulated, np.arange(25) / 24) * _DAY_US
    gaps = np.where(place > 0, random.exponential(_SECONDS_BETWEEN_IMPRESSIONS * 1e6, visit.size) + 1e6, 0.0)
    elapsed = np.cumsum(gaps)
    first = np.flatnonzero(place == 0)
    elapsed -= elapsed[first][visit]
    length = np.maximum.reduceat(elapsed, first)
    room = border[1] - border[0]
    squeeze = np.minimum(1.0, room / np.maximum(length, 1.0))
    length *= squeeze
    # Where a session would cross the border, all starts move a little, not only the last ones to one moment.
    start = border[0] + (start - border[0]) * (1 - length / room)
    time_us: Ints = np.floor(start[visit] + elapsed * squeeze[visit]).astype(np.int64)
    return time_us


def _shown(source: GeneratedSource, world: SyntheticWorld, part: Part, random: np.random.Generator) -> Ints:
    """Return the item of each row: by popularity, newer ones more often, none before its publication."""
    item = _draw(random, exposure(world, part.day), part.rows)
    for place, drift in enumerate(source.drifts):
        if drift.kind == "new_items" and drift.holds_on(part.day):
            arrivals = random_stream(source.seed, "arrivals", place, part.day, part.first_row)
            new = np.flatnonzero(arrivals.random(part.rows) < drift.strength)
            chosen = world.new_items[place]
            item[new] = chosen.start + _draw(arrivals, world.items.popularity[chosen.start : chosen.stop], new.size)
    return item


def exposure(world: SyntheticWorld, day: int) -> Floats:
    """Return how often each old item is shown on a day, in proportion."""
    age = day - world.items.published[: world.old_items]
    return np.where(age >= 0, world.items.popularity[: world.old_items] * (1 + np.exp(-np.maximum(age, 0) / 7)), 0.0)


def _of_chapters(
    source: GeneratedSource, world: SyntheticWorld, part: Part, user: Ints, visit: Ints, place: Ints, item: Ints
) -> Ints:  # fmt: skip
    """Return the item of each row, that of some rows drawn anew among the items of the user's present chapter."""
    chapters = world.chapters
    assert chapters is not None
    random = random_stream(source.seed, "followed", part.day, part.first_row)
    follows = random.random(part.rows) < chapters.follow
    shown, found = exposure(world, part.day), item.copy()
    steps = range(1, int(place.max(initial=0)) + 1) if chapters.within_session else [None]
    for step in steps:  # within a session, an item depends on the one before
        rows = np.flatnonzero(follows & (place == step)) if step is not None else np.flatnonzero(follows)
        previous = _previous(visit, place, found)[rows]
        chapter = chapters.after(previous) if chapters.within_session else chapters.of_user(user[rows], part.day)
        for number in range(chapters.count):
            chosen = rows[chapter == number]
            weight = np.where(chapters.of_item[: world.old_items] == number, shown, 0.0)
            if chosen.size and weight.any():
                found[chosen] = _draw(random, weight, chosen.size)
    return found


def _previous(visit: Ints, place: Ints, item: Ints) -> Ints:
    """Return the item before in the same session, -1 for the first one; rows are in any order."""
    order = np.lexsort((place, visit))
    before = np.where(place[order] > 0, np.roll(item[order], 1), -1)
    found = np.empty_like(item)
    found[order] = before
    return found


def _as_ranked(
    source: GeneratedSource, world: SyntheticWorld, part: Part, visit: Ints, place: Ints, item: Ints
) -> Ints:  # fmt: skip
    """Return the item of each row when an earlier ranker chooses the order of the items on each page of a visit."""
    assert source.position_bias is not None
    preferred = random_stream(source.seed, "preferred items").normal(0, 1, world.items.creator.size)
    chance = random_stream(source.seed, "ranked", part.day, part.first_row).normal(0, 1, part.rows)
    score = source.position_bias.strength * preferred[item] + chance
    page = place // SLOTS
    shown, ranked = np.lexsort((place, page, visit)), np.lexsort((-score, page, visit))
    found = item.copy()
    found[shown] = item[ranked]
    return found


def shares_shown_to(
    source: GeneratedSource, world: SyntheticWorld, chapter: Ints, day: int
) -> Floats:  # fmt: skip
    """Return which share of the impressions of some users on a day is each item's, shape (users or 1, items).

    Args:
        source: What the log is generated from.
        world: Its world.
        chapter: The chapter that each user is in; -1: none.
        day: Counted from the first day.
    """
    shares = shares_shown(source, world, day)
    if world.chapters is None:
        return shares[None]
    old = np.zeros_like(shares)
    old[: world.old_items] = exposure(world, day)
    by_chapter = np.stack(
        [np.where(world.chapters.of_item == number, old, 0.0) for number in (*range(world.chapters.count), -1)]
    )
    totals = by_chapter.sum(axis=1, keepdims=True)
    by_chapter = np.where(totals > 0, by_chapter / np.where(totals > 0, totals, 1), shares)
    followed: Floats = by_chapter[chapter]
    return (1 - world.chapters.follow) * shares + world.chapters.follow * followed


def shares_shown(source: GeneratedSource, world: SyntheticWorld, day: int) -> Floats:
    """Return which share of a day's impressions is each item's, shape (items,), but for those that follow chapters."""
    shares = np.zeros(world.items.creator.size)
    old = exposure(world, day)
    shares[: world.old_items] = old / old.sum()
    for place, drift in enumerate(source.drifts):
        if drift.kind == "new_items" and drift.holds_on(day):
            chosen = world.new_items[place]
            new = world.items.popularity[chosen.start : chosen.stop]
            shares *= 1 - drift.strength
            shares[chosen.start : chosen.stop] += drift.strength * new / new.sum()
    return shares


def _draw(random: np.random.Generator, weight: Floats, count: int) -> Ints:
    """Return indices drawn with replacement in proportion to their weights."""
    cumulated = np.cumsum(weight)
    drawn: Ints = np.searchsorted(cumulated, random.random(count) * cumulated[-1], side="right")
    return drawn
