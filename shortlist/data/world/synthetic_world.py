"""The synthetic world of a generated log: its users and items with their effects on clicks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shortlist.data.world.item_content import WorldContent
from shortlist.data.world.lifetimes import Lifetimes
from shortlist.data.world.random_streams import Floats, Ints, random_stream
from shortlist.spec.data import Drift, GeneratedSource

COUNTRIES = ("IN", "US", "BR", "ID", "DE", "JP")
AGE_GROUPS = ("18-24", "25-34", "35-49", "50+", None)
DEVICES = ("android", "iphone", "web", "tv")
TOPICS = (
    "music", "comedy", "football", "cooking", "news", "travel", "fashion", "games", "dance", "pets", "cars", "science",
    "movies", "fitness", "beauty", "crafts", "history", "cricket", "nature", "finance", "anime", "gardening", "chess",
    "poetry",
)  # fmt: skip
TAGS_PER_ITEM = 3
FAVOURITE_TAGS = 2

FIRST_OF_SESSION = 1 / 7
"""Share of the impressions that are the first of their session."""
_COUNTRY_SHARE = np.array([0.32, 0.24, 0.17, 0.13, 0.08, 0.06])
_AGE_SHARE = np.array([0.27, 0.34, 0.22, 0.13, 0.04])
_DEVICE_SHARE = np.array([0.52, 0.27, 0.15, 0.06])
_TOPIC_SHARE = 1.0 / (np.arange(len(TOPICS)) + 1.5)
_TOPIC_SHARE /= _TOPIC_SHARE.sum()


@dataclass(frozen=True)
class Tastes:
    """Tastes of users from a day on: rows of the tables of segment tastes, and own favourite topics."""

    from_day: int
    country_row: Ints
    age_row: Ints
    favourite: npt.NDArray[np.float32]
    """Shape (users, topics + 2): 1 for a favourite topic; the last two columns, for the new and no topic, are 0."""


@dataclass(frozen=True)
class GeneratedUsers:
    """The users; arrays of shape (users,), in log-odds where they affect clicks."""

    country: Ints
    age: Ints
    device: Ints
    registered: Ints
    """Day of registration, counted from the first day of the log; most are negative."""
    activity: Floats
    propensity: Floats


@dataclass(frozen=True)
class GeneratedItems:
    """The items; arrays of shape (items,), in log-odds where they affect clicks."""

    creator: Ints
    tags: Ints
    """Shape (items, 3): topics; `len(TOPICS)` is the new topic, one more is "no further topic"."""
    published: Ints
    """Day of publication, counted from the first day of the log; most are negative."""
    duration: Floats
    """Duration in seconds; NaN where the catalogue has none."""
    popularity: Floats
    quality: Floats
    country_appeal: Floats
    """Shape (rows of the country table, items)."""
    age_appeal: Floats
    """Shape (rows of the age table, items)."""


@dataclass(frozen=True)
class Chapters:
    """Chapters of items that users follow in order."""

    of_item: Ints
    """Chapter of each item, shape (items,)."""
    at_first: Ints
    """Chapter of each user on the first day, shape (users,)."""
    count: int
    follow: float
    effect: float
    within_session: bool = False

    def of_user(self, user: Ints, day: int) -> Ints:
        """Return the chapters of users on a day."""
        return (self.at_first[user] + day) % self.count

    def next_chapter(self, previous: Ints) -> Ints:
        """Return the chapters after those of previous items; -1 where the item is -1 (none)."""
        return np.where(previous < 0, -1, (self.of_item[previous] + 1) % self.count)


@dataclass(frozen=True)
class SyntheticWorld:
    """Users, items and tastes of a generated log, constant over its days except for drifts."""

    users: GeneratedUsers
    items: GeneratedItems
    tastes: tuple[Tastes, ...]
    old_items: int
    """Number of items without those of `new_items` drifts, which come after them."""
    new_items: dict[int, range]
    """Items of each `new_items` drift, by the drift's position in the spec."""
    chapters: Chapters | None = None
    content: WorldContent | None = None
    lifetimes: Lifetimes | None = None

    def tastes_on(self, day: int) -> Tastes:
        """Return the tastes of a day."""
        return [tastes for tastes in self.tastes if tastes.from_day <= day][-1]


def build_world(source: GeneratedSource) -> SyntheticWorld:
    """Return the world of a spec; drifts add to it without changing the rest."""
    changes = [(place, drift) for place, drift in enumerate(source.drifts) if drift.kind == "changed_tastes"]
    arrivals = [(place, drift) for place, drift in enumerate(source.drifts) if drift.kind == "new_items"]
    users = _draw_users(source)
    items, lifetimes = _draw_items(source), None
    if source.lifetime is not None:
        lifetimes = Lifetimes.draw_lifetimes(source.lifetime, source.items, source.days, source.seed)
        items = replace(items, published=lifetimes.appears_on, quality=np.zeros(source.items))
    tastes = [_first_tastes(source, users)]
    for number, (place, drift) in enumerate(sorted(changes, key=lambda change: change[1].from_day), start=1):
        tastes.append(_change_tastes(tastes[-1], drift, number, random_stream(source.seed, "changed tastes", place)))
    new_items: dict[int, range] = {}
    for place, drift in arrivals:
        first = items.creator.size
        items = _add_new_items(items, drift, source, random_stream(source.seed, "new items", place))
        new_items[place] = range(first, items.creator.size)
    items = _add_appeal(items, source, tables=1 + len(changes))
    count = items.creator.size
    content = (
        WorldContent.draw(source.content, source.users, count, source.seed) if source.content is not None else None
    )
    return SyntheticWorld(
        users, items, tuple(tastes), source.items, new_items, _draw_chapters(source, count), content, lifetimes
    )


def _draw_chapters(source: GeneratedSource, items: int) -> Chapters | None:
    if source.chapters is None:
        return None
    random, declared = random_stream(source.seed, "chapters"), source.chapters
    at_first = random.integers(0, declared.count, source.users)
    # The chapters of old items do not depend on the items of drifts, which come last.
    of_item = random.integers(0, declared.count, items)
    return Chapters(of_item, at_first, declared.count, declared.follow, declared.effect, declared.within_session)


def _draw_users(source: GeneratedSource) -> GeneratedUsers:
    random = random_stream(source.seed, "users")
    count = source.users
    country = random.choice(len(COUNTRIES), count, p=_COUNTRY_SHARE)
    age = random.choice(len(AGE_GROUPS), count, p=_AGE_SHARE)
    activity = (random.permutation(count) + 1.0 + 0.02 * count) ** -1.1
    registered = -(random.exponential(400, count).astype(np.int64) + 1)
    newcomers = random.random(count) < 0.05
    registered[newcomers] = random.integers(0, source.days, int(newcomers.sum()))
    segment = random.normal(0, 1, len(COUNTRIES))[country] + random.normal(0, 1, len(AGE_GROUPS))[age]
    log_activity = np.log(activity)
    personal_level = random.normal(0, 1, count)
    propensity = sum_of_effects(
        activity,
        (segment, 0.2),
        (log_activity, 0.12),
        (-np.log(1.0 + np.maximum(-registered, 0)), 0.15),
        (personal_level * activity**0.4, 0.1),
    )
    return GeneratedUsers(
        country, age, random.choice(len(DEVICES), count, p=_DEVICE_SHARE), registered, activity, propensity
    )


def _draw_items(source: GeneratedSource) -> GeneratedItems:
    random = random_stream(source.seed, "items")
    count = source.items
    makers = max(2, count // 25)
    creator = random.choice(makers, count, p=_heavy_tail(makers))
    theme = random.choice(len(TOPICS), makers, p=_TOPIC_SHARE)
    popularity = (random.permutation(count) + 1.0 + 0.005 * count) ** -1.1
    published = -(random.exponential(120, count).astype(np.int64) + 1)
    is_new = random.random(count) < 0.04
    published[is_new] = random.integers(0, source.days, int(is_new.sum()))
    popularity[is_new] = np.minimum(popularity[is_new], np.median(popularity))
    tags = _draw_topics(random, theme[creator])
    duration = np.round(np.clip(random.lognormal(3.6, 0.8, count), 3, 1800), 1)
    quality = sum_of_effects(
        popularity,
        (random.normal(0, 1, makers)[creator], 0.3),
        (np.log(popularity), 0.2),
        (-np.log(duration), 0.25),
        (random.normal(0, 1, count) * popularity**0.4, 0.1),
    )
    duration[random.random(count) < 0.03] = np.nan
    no_appeal = np.empty((0, count))
    return GeneratedItems(creator, tags, published, duration, popularity, quality, no_appeal, no_appeal)


def _draw_topics(random: np.random.Generator, theme: Ints) -> Ints:
    """Draw one to three different topics per item, the first one with half of them its creator's."""
    count = theme.size
    tags = random.choice(len(TOPICS), (count, TAGS_PER_ITEM), p=_TOPIC_SHARE)
    tags[:, 0] = np.where(random.random(count) < 0.5, theme, tags[:, 0])
    topic_counts = random.choice([1, 2, 3], count, p=[0.5, 0.35, 0.15])
    repeated = np.column_stack(
        [(tags[:, :place] == tags[:, place, None]).any(axis=1) for place in range(TAGS_PER_ITEM)]
    )
    tags[repeated | (np.arange(TAGS_PER_ITEM) >= topic_counts[:, None])] = len(TOPICS) + 1
    return np.sort(tags, axis=1)


def _first_tastes(source: GeneratedSource, users: GeneratedUsers) -> Tastes:
    favourite = _draw_favourites(random_stream(source.seed, "favourites"), users.country.size)
    return Tastes(0, users.country, users.age, favourite)


def _draw_favourites(random: np.random.Generator, users: int) -> npt.NDArray[np.float32]:
    favourite = np.zeros((users, len(TOPICS) + 2), np.float32)
    favourite_topics = random.choice(len(TOPICS), (users, FAVOURITE_TAGS), p=_TOPIC_SHARE)
    favourite[np.arange(users)[:, None], favourite_topics] = 1
    return favourite


def _change_tastes(previous_tastes: Tastes, drift: Drift, number: int, random: np.random.Generator) -> Tastes:
    """Draw new favourites and new rows of segment tastes for some users."""
    users = previous_tastes.country_row.size
    is_changed = random.random(users) < drift.strength
    return Tastes(
        drift.from_day,
        np.where(
            is_changed,
            previous_tastes.country_row % len(COUNTRIES) + number * len(COUNTRIES),
            previous_tastes.country_row,
        ),
        np.where(
            is_changed, previous_tastes.age_row % len(AGE_GROUPS) + number * len(AGE_GROUPS), previous_tastes.age_row
        ),
        np.where(is_changed[:, None], _draw_favourites(random, users), previous_tastes.favourite),
    )


def _add_new_items(
    items: GeneratedItems, drift: Drift, source: GeneratedSource, random: np.random.Generator
) -> GeneratedItems:
    """Append items published on the drift's day, all of the new topic, by existing creators."""
    count = max(5, round(0.1 * source.items))
    tags = np.full((count, TAGS_PER_ITEM), len(TOPICS) + 1)
    tags[:, 0] = len(TOPICS)
    second = random.random(count) < 0.5
    tags[second, 1] = random.choice(len(TOPICS), int(second.sum()), p=_TOPIC_SHARE)
    popularity = _heavy_tail(count)
    return replace(
        items,
        creator=np.concatenate([items.creator, random.choice(items.creator, count)]),
        tags=np.concatenate([items.tags, np.sort(tags, axis=1)]),
        published=np.concatenate([items.published, np.full(count, drift.from_day)]),
        duration=np.concatenate([items.duration, np.round(random.lognormal(3.0, 0.6, count), 1)]),
        popularity=np.concatenate([items.popularity, popularity]),
        quality=np.concatenate([items.quality, sum_of_effects(popularity, (random.normal(0, 1, count), 0.6))]),
    )


def _add_appeal(items: GeneratedItems, source: GeneratedSource, tables: int) -> GeneratedItems:
    old = np.where(np.arange(items.creator.size) < source.items, items.popularity, 0.0)
    by_country = [
        _draw_appeal(items.tags, old, len(COUNTRIES), random_stream(source.seed, "country tastes", table))
        for table in range(tables)
    ]
    by_age = [
        _draw_appeal(items.tags, old, len(AGE_GROUPS), random_stream(source.seed, "age tastes", table))
        for table in range(tables)
    ]
    return replace(items, country_appeal=0.33 * np.concatenate(by_country), age_appeal=0.33 * np.concatenate(by_age))


def _draw_appeal(tags: Ints, weight: Floats, rows: int, random: np.random.Generator) -> Floats:
    taste = np.zeros((rows, len(TOPICS) + 2))
    taste[:, :-1] = random.normal(0, 1, (rows, len(TOPICS) + 1)) * np.append(_TOPIC_SHARE, _TOPIC_SHARE[0]) ** 0.8
    appeal = mean_over_tags(taste[:, tags], tags)
    return np.stack([standardise(row, weight) for row in appeal])


def mean_over_tags(values: Floats | npt.NDArray[np.float32], tags: Ints) -> Floats:
    """Return the mean over an item's topics; `values` and `tags` have the topics last, "no topic" valued 0."""
    mean: Floats = values.sum(axis=-1) / (tags <= len(TOPICS)).sum(axis=-1)
    return mean


def sum_of_effects(weight: Floats, *effects: tuple[Floats, float]) -> Floats:
    """Return the sum of effects, each scaled to its standard deviation over impressions (rows weighted)."""
    total: Floats = np.sum([size * standardise(values, weight) for values, size in effects], axis=0)
    return total


def standardise(values: Floats, weight: Floats) -> Floats:
    """Return values with weighted mean 0 and variance 1, so that effect sizes do not depend on the seed."""
    centred = values - np.average(values, weights=weight)
    scale = np.sqrt(np.average(centred**2, weights=weight))
    return centred / scale if scale > 0 else centred


def _heavy_tail(count: int) -> Floats:
    share = 1.0 / (np.arange(count) + 3.0)
    normalised: Floats = share / share.sum()
    return normalised
