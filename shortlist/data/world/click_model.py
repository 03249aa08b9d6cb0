"""The planted click probability of a generated log."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from shortlist.data.world.random_streams import Floats, Ints
from shortlist.data.world.synthetic_world import DEVICES, SyntheticWorld, mean_over_tags
from shortlist.data.world.traffic import SLOTS, SURFACES, GeneratedImpressions, LogPart, draw_impressions
from shortlist.spec.data import GeneratedSource

_SURFACE_EFFECT = np.array([0.0, 0.9, 2.1, -1.6])
_DEVICE_EFFECT = np.array([0.0, 0.45, -0.3, -0.8])
_SURFACE_DEVICE_EFFECT = np.zeros((len(SURFACES), len(DEVICES)))
_SURFACE_DEVICE_EFFECT[2, 3], _SURFACE_DEVICE_EFFECT[3, 2] = (
    -0.6,
    -0.5,
)  # searching on a television, notifications on the web
_POSITION_EFFECT = -0.8 * np.log(np.arange(1, SLOTS + 1))
_FEED = 2
"""The surface on which position matters most."""
_FAVOURITE_TOPIC_WEIGHT = 0.2
"""Effect of a user's own favourite topics, which is hard to learn."""
_OWN_LEVEL_WEIGHT = 0.65
"""Effect of a user's propensity and an item's quality."""
_CLICK_RATE, _DEVIATION = 0.3, 1.2
"""Mean probability, and standard deviation of the log-odds, on the first day; the best possible AUC is near 0.77."""
CALIBRATION_ROWS = 20_000


@dataclass(frozen=True)
class ClickModel:
    """Log-odds of a click: `offset + scale * appeal`, calibrated so that worlds of all seeds are equally hard."""

    world: SyntheticWorld
    offset: float
    scale: float
    taste: float

    @classmethod
    def calibrate(cls, source: GeneratedSource, world: SyntheticWorld) -> Self:
        """Return the click model of a world, calibrated on impressions drawn for its first day."""
        impressions = draw_impressions(source, world, LogPart(0, (0.0, 1.0), CALIBRATION_ROWS, 0))
        appeal = _appeal(world, impressions, 0, source.taste)
        scale = _DEVIATION / float(appeal.std())
        offset = float(brentq(lambda offset: float(expit(offset + scale * appeal).mean()) - _CLICK_RATE, -20, 20))
        return cls(world, offset, scale, source.taste)

    def probability(self, impressions: GeneratedImpressions, day: int) -> Floats:
        """Return the probability of a click, shape (rows,)."""
        probability: Floats = expit(self.offset + self.scale * _appeal(self.world, impressions, day, self.taste))
        return np.round(probability, 9)  # the last bits depend on array lengths, and so on later drifts

    def probability_at_first_position(self, impressions: GeneratedImpressions, day: int) -> Floats:
        """Return the probability of a click if every item had been shown first, shape (rows,)."""
        return self.probability(replace(impressions, position=np.ones_like(impressions.position)), day)

    def expected_clicks(self, users: Ints, chapter: Ints, context: Floats, day: int) -> Floats:
        """Return the probability of a click of some users on every item, shape (users, items).

        Args:
            users: Numbers of the users.
            chapter: Chapter of each user; -1: none.
            context: Context appeals; the mean over them is returned.
            day: Day, counted from the first one.
        """
        items = np.arange(self.world.items.creator.size)[None]
        appeal = _preference(self.world, users[:, None], items, chapter[:, None], day, self.taste, np.zeros(1))
        probabilities = [expit(self.offset + self.scale * (appeal + context_appeal)) for context_appeal in context]
        mean_probability: Floats = np.mean(probabilities, axis=0)
        return mean_probability


def _appeal(world: SyntheticWorld, impressions: GeneratedImpressions, day: int, weight: float) -> Floats:
    chapters, chapter = world.chapters, np.full(1, -1)
    if chapters is not None:
        if chapters.within_session:
            chapter = chapters.next_chapter(impressions.previous)
        else:
            chapter = chapters.of_user(impressions.user, day)
    return _preference(world, impressions.user, impressions.item, chapter, day, weight, _context(impressions))


def _context(impressions: GeneratedImpressions) -> Floats:
    context: Floats = (
        _SURFACE_EFFECT[impressions.surface]
        + _DEVICE_EFFECT[impressions.device]
        + _SURFACE_DEVICE_EFFECT[impressions.surface, impressions.device]
        + _POSITION_EFFECT[impressions.position - 1] * np.where(impressions.surface == _FEED, 1.3, 0.8)
        + 0.3 * np.cos(2 * np.pi * (impressions.time_us / 3.6e9 - 21) / 24)
    )
    return context


def _preference(
    world: SyntheticWorld, user: Ints, item: Ints, chapter: Ints, day: int, weight: float, context: Floats
) -> Floats:  # fmt: skip
    """Return the appeal of items to users, of the shape that users, items and chapters have together."""
    users, items, tastes = world.users, world.items, world.tastes_on(day)
    tags = items.tags[item]
    taste = (
        items.country_appeal[tastes.country_row[user], item]
        + items.age_appeal[tastes.age_row[user], item]
        + _FAVOURITE_TOPIC_WEIGHT * mean_over_tags(tastes.favourite[user[..., None], tags], tags)
    )
    further = 0.4 * np.exp(-(day - items.published[item]) / 14)
    if world.chapters is not None:
        further = further + world.chapters.effect * (world.chapters.of_item[item] == chapter)
    if world.content is not None:
        further = further + world.content.appeal(user, item)
    if world.lifetimes is not None:
        further = further + world.lifetimes.quality[item]
    # Users and items differ less than contexts: thousands of them are rarely seen in 200 000 rows.
    appeal: Floats = (
        context + weight * taste + _OWN_LEVEL_WEIGHT * (users.propensity[user] + items.quality[item]) + further
    )
    return appeal
