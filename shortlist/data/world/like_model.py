"""The planted probability of the second outcome of a generated log: a like after a click."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from shortlist.data.world.click_model import CALIBRATION_ROWS, ClickModel
from shortlist.data.world.random_streams import Floats, random_stream
from shortlist.data.world.synthetic_world import standardise
from shortlist.data.world.traffic import GeneratedImpressions, LogPart, draw_impressions
from shortlist.spec.data import GeneratedSource

_ITEM_VARIANCE_SHARE: Final = 0.8
"""Share of the variance that items explain; users explain the rest."""


@dataclass(frozen=True)
class LikeModel:
    """Log-odds of a like after a click: `offset` plus an effect of the item and one of the user."""

    of_item: Floats
    of_user: Floats
    offset: float

    @classmethod
    def calibrate(cls, source: GeneratedSource, clicks: ClickModel) -> Self:
        """Return the like model of a world, calibrated to the declared rate on impressions drawn for its first day."""
        assert source.likes is not None
        world, effect = clicks.world, source.likes.effect
        of_item = random_stream(source.seed, "likes of items").normal(0, 1, world.items.creator.size)
        if world.content is not None:  # half of the variance follows from the content
            direction = random_stream(source.seed, "liked content").normal(0, 1, world.content.properties_IK.shape[1])
            of_item = (of_item + world.content.properties_IK @ direction / np.linalg.norm(direction)) / np.sqrt(2)
        of_user = standardise(
            random_stream(source.seed, "likes of users").normal(0, 1, source.users), world.users.activity
        )
        item, user = (
            effect * np.sqrt(_ITEM_VARIANCE_SHARE) * of_item,
            effect * np.sqrt(1 - _ITEM_VARIANCE_SHARE) * of_user,
        )
        impressions = draw_impressions(source, world, LogPart(0, (0.0, 1.0), CALIBRATION_ROWS, 0))
        weight, level = clicks.probability(impressions, 0), item[impressions.item] + user[impressions.user]
        rate = source.likes.rate
        offset = brentq(lambda offset: float(np.average(expit(offset + level), weights=weight)) - rate, -30, 30)
        return cls(item, user, float(offset))

    def probability(self, impressions: GeneratedImpressions, click_probability: Floats) -> Floats:
        """Return the probability that impressions are clicked and liked, shape (rows,).

        Args:
            impressions: The impressions.
            click_probability: The probability of their clicks.
        """
        like_probability: Floats = expit(self.offset + self.of_item[impressions.item] + self.of_user[impressions.user])
        return np.round(click_probability * like_probability, 9)
