"""The generated world as an application meets it: users who ask for slates, look at them, click and come back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Final, Self

import numpy as np
import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.data.world.click_model import ClickModel
from shortlist.data.world.generate import FIRST_ITEM, FIRST_USER, draw_watch_seconds
from shortlist.data.world.random_streams import Floats, Ints, random_stream
from shortlist.data.world.synthetic_world import DEVICES, FIRST_OF_SESSION, build_world
from shortlist.data.world.traffic import (
    SECONDS_BETWEEN_IMPRESSIONS,
    SLOTS,
    SURFACES,
    GeneratedImpressions,
    draw_contexts,
    hourly_visits,
)
from shortlist.spec.data import Drift, GeneratedSource

SENT_COLUMNS: Final = ("surface", "device")
"""Columns that an application sends with a request, beside its user: a `broken_column` drift may break them."""
NO_ITEM: Final = -1
"""Value of a place without an item."""
_DAY_US: Final = 86_400_000_000
_USUAL_CLICK_RATE: Final = 0.3
_RETURN_EFFECT: Final = 1.0
"""Effect of the share of seen items that were clicked on the logarithm of the time until a user comes back."""


@dataclass(frozen=True)
class Requests:
    """Requests of users in time order; arrays of shape (requests,)."""

    number: Ints
    """Unique number of each request."""
    time_us: Ints
    """Microseconds since the midnight of the world's first day."""
    user: Ints
    surface: Ints
    device: Ints

    @classmethod
    def read(cls, rows: pl.DataFrame, source: GeneratedSource) -> Self:
        """Return the requests in the columns `user_id`, `surface`, `device` and `event_time`, numbered by row."""
        time_us = rows[Columns.TIME].dt.timestamp("us").to_numpy() - _midnight_us(source)
        surface, device = _codes(rows["surface"], SURFACES), _codes(rows["device"], DEVICES)
        return cls(np.arange(rows.height), time_us, rows["user_id"].to_numpy() - FIRST_USER, surface, device)

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return the requests of all parts, in their order."""
        names = [field.name for field in fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def split(self, most: int) -> Iterator[Self]:
        """Yield the requests in their order, at most so many at a time."""
        names = [field.name for field in fields(self)]
        for first in range(0, self.user.size, most):
            yield type(self)(*(getattr(self, name)[first : first + most] for name in names))

    def frame(self, source: GeneratedSource) -> pl.DataFrame:
        """Return the columns of the log that are known with a request, as applications send them.

        Values that a `broken_column` drift breaks are null.
        """
        rows = pl.DataFrame(
            {
                "request_id": self.number,
                Columns.TIME: _midnight_us(source) + self.time_us,
                "user_id": FIRST_USER + self.user,
                "surface": pl.Series(SURFACES).gather(self.surface),
                "device": pl.Series(DEVICES).gather(self.device),
            }
        ).cast({Columns.TIME: pl.Datetime("us", "UTC")})
        for place, drift in enumerate(source.drifts):
            if drift.kind == "broken_column" and drift.column in SENT_COLUMNS:
                rows = rows.with_columns(self._broken_values(source, place, drift, rows[drift.column]))
        return rows

    def _broken_values(self, source: GeneratedSource, place: int, drift: Drift, values: pl.Series) -> pl.Series:
        """Return a column with null where the drift breaks it; the same requests for the same part of a day."""
        is_broken = np.zeros(values.len(), np.bool_)
        for day, rows in rows_by_day(self.time_us):
            if drift.holds_on(day):
                random = random_stream(source.seed, "broken requests", place, day, int(self.number[rows[0]]))
                is_broken[rows] = random.random(rows.size) < drift.strength
        return values.set(pl.Series(is_broken), None)


class AnsweringWorld:
    """Users of a generated world, who answer the slates that they are shown.

    A user asks, sees the slate down to a random depth, clicks each seen item with the planted probability of its
    position and context, and comes back sooner when a larger share of the seen items was worth a click.

    Args:
        source: Declaration of the world.
        slates_per_day: Expected number of requests on a day on which three in ten seen items are clicked.
        first_day: Day on which users begin to ask, counted from the world's first one.
    """

    def __init__(self, source: GeneratedSource, slates_per_day: int, first_day: int = 0) -> None:
        self.source = source
        self.world = build_world(source)
        self.click_model = ClickModel.calibrate(source, self.world)
        activity = self.world.users.activity
        visits = slates_per_day * activity / activity.sum()
        self._usual_days = 1.0 / visits
        """Usual time between two requests of each user, in days of the world."""
        self._random = random_stream(source.seed, "answers", first_day)
        begins = np.maximum(self.world.users.registered, first_day)
        self._next = begins + self._random.exponential(self._usual_days)
        """Time of each user's next request, in days weighted by the hours in which users ask."""
        self._asked = 0

    def ask(self, until: float) -> Requests:
        """Return the next request of each user who asks before a moment; call again until nobody does.

        Users ask again only after their slate was answered.

        Args:
            until: Days since the first day's midnight, a fraction of a day weighted by the hours of visits.
        """
        while (requests := self._ask_once(until)) is None:
            pass
        return requests

    def _ask_once(self, until: float) -> Requests | None:
        """Return the next requests; None where all users who were due stayed away."""
        users = np.flatnonzero(self._next < until)
        is_over = not users.size
        users = users[np.argsort(self._next[users], kind="stable")]
        moments = self._next[users]
        self._next[users] = np.inf
        is_missing = self._random.random(users.size) < self._collapsed(moments)
        self._return(users[is_missing], moments[is_missing], np.full(int(is_missing.sum()), _USUAL_CLICK_RATE))
        users, moments = users[~is_missing], moments[~is_missing]
        surface, device = draw_contexts(self._random, self.world, users)
        numbers = np.arange(self._asked, self._asked + users.size)
        self._asked += users.size
        if not users.size and not is_over:
            return None
        return Requests(numbers, self._clock(moments), users, surface, device)

    def answer(self, requests: Requests, slates: Ints) -> pl.DataFrame:
        """Return what users do with their slates; they come back later.

        Args:
            requests: The requests.
            slates: Ids of the shown items in order, `NO_ITEM` where a slate is shorter, shape (requests, places).

        Returns:
            One row per shown item: the columns of the log, `seen`, and the planted `true_probability`. Items that were
            not seen have no click and no watched seconds.

        Raises:
            DataError: A slate has more places than the world's pages.
        """
        if slates.shape[1] > SLOTS:
            raise DataError(f"slates of {slates.shape[1]} places; pages of the generated world have {SLOTS}")
        depth = self._random.geometric(FIRST_OF_SESSION, len(slates))
        row, place = np.nonzero(slates != NO_ITEM)
        seconds = self._random.exponential(SECONDS_BETWEEN_IMPRESSIONS, slates.shape)
        elapsed_us = (1e6 * (np.cumsum(seconds, axis=1) - seconds[:, :1])).astype(np.int64)
        item = slates[row, place] - FIRST_ITEM
        time_us = requests.time_us[row] + elapsed_us[row, place]
        probability = self._probability(requests, row, item, place + 1, time_us)
        seen = place < depth[row]
        clicked = seen & (self._random.random(row.size) < probability)
        duration = self.world.items.duration[item]
        watched = draw_watch_seconds(self._random, clicked, duration)
        asked = requests.frame(self.source)[row]
        events = asked.with_columns(
            pl.Series(Columns.TIME, _midnight_us(self.source) + time_us).cast(pl.Datetime("us", "UTC")),
            pl.Series("item_id", slates[row, place]),
            pl.Series("position", place + 1),
            pl.Series("duration", duration).fill_nan(None),
            pl.Series("seen", seen),
            pl.Series("watch_seconds", np.where(seen, watched, np.nan)).fill_nan(None),
            pl.Series("is_click", np.where(seen, clicked, 0).astype(np.int64)).set(pl.Series(~seen), None),
            pl.Series(Columns.BEST, probability),
        )
        seen_count = np.bincount(row[seen], minlength=len(slates))
        clicks = np.bincount(row[clicked], minlength=len(slates))
        rate = np.divide(clicks, seen_count, out=np.zeros(len(slates)), where=seen_count > 0)
        self._return(requests.user, self._operational(requests.time_us), rate)
        return events

    def click_probability(self, rows: pl.DataFrame) -> Floats:
        """Return the planted probability of a click of rows, if they are seen, shape (rows,).

        Args:
            rows: Columns `user_id`, `item_id`, `surface`, `device`, `position` and `event_time`; any combination.
        """
        requests = Requests.read(rows, self.source)
        item, position = rows["item_id"].to_numpy() - FIRST_ITEM, rows["position"].to_numpy()
        return self._probability(requests, requests.number, item, position, requests.time_us)

    def expected_rewards(self, requests: Requests, slates: Ints) -> Floats:
        """Return the expected number of clicks on each slate, over depths and clicks, shape (requests,).

        Args:
            requests: The requests.
            slates: As for `answer`.
        """
        row, place = np.nonzero(slates != NO_ITEM)
        item = slates[row, place] - FIRST_ITEM
        probability = self._probability(requests, row, item, place + 1, requests.time_us[row])
        clicks = probability * examination(slates.shape[1])[place]
        return np.bincount(row, clicks, len(slates)).astype(np.float64)

    def best_slates(self, requests: Requests, places: int = SLOTS) -> Ints:
        """Return the slates with the most expected clicks, ids of items, shape (requests, places).

        Position and context change the log-odds of all items alike, so that the best order does not depend on them.
        """
        best = np.empty((requests.user.size, places), np.int64)
        for day, rows in rows_by_day(requests.time_us):
            published = self.world.items.published <= day
            users, request_user = np.unique(requests.user[rows], return_inverse=True)
            for block in np.array_split(np.arange(users.size), -(-users.size * published.size // 2_000_000)):
                no_chapter, no_context = np.full(block.size, -1), np.zeros(1)
                appeal = self.click_model.expected_clicks(users[block], no_chapter, no_context, day)
                items = np.argsort(-np.where(published, appeal, 0.0), axis=1, kind="stable")[:, :places]
                is_of_block = (request_user >= block[0]) & (request_user <= block[-1])
                best[rows[is_of_block]] = FIRST_ITEM + items[request_user[is_of_block] - block[0]]
        return best

    def published(self, day: int) -> Ints:
        """Return the ids of the items that are published on a day, counted from the world's first one."""
        return FIRST_ITEM + np.flatnonzero(self.world.items.published <= day)

    def _probability(self, requests: Requests, row: Ints, item: Ints, position: Ints, time_us: Ints) -> Floats:
        """Return the probability of clicks on items that are seen at a time, shape (rows,); `row`: of the requests."""
        probability = np.empty(row.size)
        for day, rows in rows_by_day(time_us):
            of_request, no_item = row[rows], np.full(rows.size, NO_ITEM)
            impressions = GeneratedImpressions(
                time_us[rows] - day * _DAY_US, requests.user[of_request], item[rows],
                requests.surface[of_request], requests.device[of_request], position[rows], no_item, rows,
            )  # fmt: skip
            probability[rows] = self.click_model.probability(impressions, day)
        return probability

    def _return(self, users: Ints, moments: Floats, click_rate: Floats) -> None:
        waiting = self._random.exponential(self._usual_days[users])
        self._next[users] = moments + waiting * np.exp(-_RETURN_EFFECT * (click_rate - _USUAL_CLICK_RATE))

    def _collapsed(self, moments: Floats) -> Floats:
        share = np.zeros(moments.size)
        for drift in self.source.drifts:
            if drift.kind == "volume_collapse":
                holds = np.array([drift.holds_on(int(day)) for day in moments], np.bool_)
                share[holds] = drift.strength
        return share

    def _clock(self, moments: Floats) -> Ints:
        """Return microseconds of moments that are weighted by the hours of visits."""
        time_us = np.empty(moments.size, np.int64)
        for day, rows in rows_by_day((moments * _DAY_US).astype(np.int64)):
            fraction = np.interp(moments[rows] - day, _hours(self.source, day), np.arange(25) / 24)
            time_us[rows] = day * _DAY_US + np.minimum(fraction * _DAY_US, _DAY_US - 1).astype(np.int64)
        return time_us

    def _operational(self, time_us: Ints) -> Floats:
        moments = np.empty(time_us.size)
        for day, rows in rows_by_day(time_us):
            hours = _hours(self.source, day)
            moments[rows] = day + np.interp((time_us[rows] - day * _DAY_US) / _DAY_US, np.arange(25) / 24, hours)
        return moments


def examination(places: int) -> Floats:
    """Return the probability that each place of a slate is seen, shape (places,)."""
    probabilities: Floats = (1 - FIRST_OF_SESSION) ** np.arange(places)
    return probabilities


def rows_by_day(time_us: Ints) -> list[tuple[int, Ints]]:
    """Return each day and the numbers of its rows, from times in microseconds since the world began."""
    days = time_us // _DAY_US
    return [(int(day), np.flatnonzero(days == day)) for day in np.unique(days)]


def _hours(source: GeneratedSource, day: int) -> Floats:
    visits = hourly_visits(source, day)
    cumulated: Floats = np.concatenate([[0.0], np.cumsum(visits)]) / visits.sum()
    return cumulated


def _codes(column: pl.Series, names: tuple[str, ...]) -> Ints:
    return column.replace_strict(dict(zip(names, range(len(names)), strict=True)), return_dtype=pl.Int64).to_numpy()


def _midnight_us(source: GeneratedSource) -> int:
    return int(datetime.combine(source.start, datetime.min.time(), UTC).timestamp()) * 1_000_000
