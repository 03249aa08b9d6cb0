"""The planted click probability of a generated log."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from shortlist.data.random_streams import Floats, Ints
from shortlist.data.synthetic_world import DEVICES, SyntheticWorld, mean_over_tags
from shortlist.data.traffic import SLOTS, SURFACES, Impressions, Part, draw_impressions
from shortlist.spec.data import GeneratedSource

_SURFACE_EFFECT = np.array([0.0, 0.9, 2.1, -1.6])
_DEVICE_EFFECT = np.array([0.0, 0.45, -0.3, -0.8])
_TOGETHER = np.zeros((len(SURFACES), len(DEVICES)))
_TOGETHER[2, 3], _TOGETHER[3, 2] = -0.6, -0.5  # searching on a television, notifications on the web
_POSITION_EFFECT = -0.8 * np.log(np.arange(1, SLOTS + 1))
_FEED = 2
"""The surface on which position matters most."""
_OWN_TASTE = 0.2
"""How much a favourite topic of one's own counts; the hard part to learn."""
_OF_ITS_OWN = 0.65
"""How much a user's and an item's own level counts."""
_CLICK_RATE, _DEVIATION = 0.3, 1.2
"""Mean probability and standard deviation of the log-odds on the first day; the best possible AUC is near 0.77."""
CALIBRATION_ROWS = 20_000


@dataclass(frozen=True)
class ClickModel:
    """Log-odds of a click: `offset + scale * appeal`, calibrated so that every seed gives a world as hard as others."""

    world: SyntheticWorld
    offset: float
    scale: float
    taste: float

    @classmethod
    def of(cls, source: GeneratedSource, world: SyntheticWorld) -> Self:
        """Return the truth of a world, calibrated on rows like those of its first day."""
        shown = draw_impressions(source, world, Part(0, (0.0, 1.0), CALIBRATION_ROWS, 0))
        appeal = _appeal(world, shown, 0, source.taste)
        scale = _DEVIATION / float(appeal.std())
        offset = float(brentq(lambda offset: float(expit(offset + scale * appeal).mean()) - _CLICK_RATE, -20, 20))
        return cls(world, offset, scale, source.taste)

    def probability(self, shown: Impressions, day: int) -> Floats:
        """Return the probability of a click, shape (rows,)."""
        probability: Floats = expit(self.offset + self.scale * _appeal(self.world, shown, day, self.taste))
        return np.round(probability, 9)  # the last bits depend on how long arrays are, and so on drifts to come

    def at_first_position(self, shown: Impressions, day: int) -> Floats:
        """Return the probability of a click had every item been shown first, shape (rows,)."""
        return self.probability(replace(shown, position=np.ones_like(shown.position)), day)

    def clicks_expected(self, users: Ints, chapter: Ints, context: Floats, day: int) -> Floats:
        """Return the probability of a click of some users on every item, shape (users, items).

        Args:
            users: Numbers of the users.
            chapter: The chapter that each is in; -1: none.
            context: What the moments of `usual_context` add to the appeal; the mean over them is returned.
            day: Counted from the first day.
        """
        items = np.arange(self.world.items.creator.size)
        pairs = np.repeat(users, items.size), np.tile(items, users.size)
        appeal = _preference(self.world, *pairs, np.repeat(chapter, items.size), day, self.taste, np.zeros(1))
        chances = [expit(self.offset + self.scale * (appeal + one)) for one in context]
        found: Floats = np.mean(chances, axis=0).reshape(users.size, items.size)
        return found

    def usual_context(self, source: GeneratedSource, day: int) -> Floats:
        """Return what the contexts of a day's impressions add to the appeal: five quantiles."""
        shown = draw_impressions(source, self.world, Part(day, (0.0, 1.0), CALIBRATION_ROWS, 0))
        return np.quantile(_context(shown), np.linspace(0.1, 0.9, 5))


def _appeal(world: SyntheticWorld, shown: Impressions, day: int, weight: float) -> Floats:
    chapters, chapter = world.chapters, np.full(1, -1)
    if chapters is not None:
        chapter = chapters.after(shown.previous) if chapters.within_session else chapters.of_user(shown.user, day)
    return _preference(world, shown.user, shown.item, chapter, day, weight, _context(shown))


def _context(shown: Impressions) -> Floats:
    context: Floats = (
        _SURFACE_EFFECT[shown.surface]
        + _DEVICE_EFFECT[shown.device]
        + _TOGETHER[shown.surface, shown.device]
        + _POSITION_EFFECT[shown.position - 1] * np.where(shown.surface == _FEED, 1.3, 0.8)
        + 0.3 * np.cos(2 * np.pi * (shown.time_us / 3.6e9 - 21) / 24)
    )
    return context


def _preference(
    world: SyntheticWorld, user: Ints, item: Ints, chapter: Ints, day: int, weight: float, context: Floats
) -> Floats:  # fmt: skip
    users, items, tastes = world.users, world.items, world.tastes_on(day)
    tags = items.tags[item]
    taste = (
        items.country_appeal[tastes.country_row[user], item]
        + items.age_appeal[tastes.age_row[user], item]
        + _OWN_TASTE * mean_over_tags(tastes.favourite[user[:, None], tags], tags)
    )
    further = 0.4 * np.exp(-(day - items.published[item]) / 14)
    if world.chapters is not None:
        further = further + world.chapters.effect * (world.chapters.of_item[item] == chapter)
    if world.content is not None:
        further = further + world.content.appeal(user, item)
    if world.lifetimes is not None:
        further = further + world.lifetimes.quality[item]
    # Users and items differ less than contexts do: 200 000 rows are few for thousands of them, most rarely seen.
    appeal: Floats = context + weight * taste + _OF_ITS_OWN * (users.propensity[user] + items.quality[item]) + further
    return appeal
