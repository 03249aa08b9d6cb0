"""The planted probability of the second outcome of a generated log: a like after a click."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from shortlist.data.click_model import CALIBRATION_ROWS, ClickModel
from shortlist.data.random_streams import Floats, random_stream
from shortlist.data.synthetic_world import standardised
from shortlist.data.traffic import Impressions, Part, draw_impressions
from shortlist.spec.data import GeneratedSource

_OF_ITEM: Final = 0.8
"""Share of the variance that items explain; users explain the rest."""


@dataclass(frozen=True)
class LikeModel:
    """Log-odds of a like after a click: a level of the item and one of the user."""

    of_item: Floats
    of_user: Floats
    offset: float

    @classmethod
    def of(cls, source: GeneratedSource, clicks: ClickModel) -> Self:
        """Return the truth of a world, calibrated to the declared rate on rows like those of its first day."""
        assert source.likes is not None
        world, effect = clicks.world, source.likes.effect
        of_item = random_stream(source.seed, "likes of items").normal(0, 1, world.items.creator.size)
        if world.content is not None:  # half of it can be told from the content
            direction = random_stream(source.seed, "liked content").normal(0, 1, world.content.properties_IK.shape[1])
            of_item = (of_item + world.content.properties_IK @ direction / np.linalg.norm(direction)) / np.sqrt(2)
        of_user = standardised(
            random_stream(source.seed, "likes of users").normal(0, 1, source.users), world.users.activity
        )
        item, user = effect * np.sqrt(_OF_ITEM) * of_item, effect * np.sqrt(1 - _OF_ITEM) * of_user
        shown = draw_impressions(source, world, Part(0, (0.0, 1.0), CALIBRATION_ROWS, 0))
        weight, level = clicks.probability(shown, 0), item[shown.item] + user[shown.user]
        rate = source.likes.rate
        offset = brentq(lambda at: float(np.average(expit(at + level), weights=weight)) - rate, -30, 30)
        return cls(item, user, float(offset))

    def probability(self, shown: Impressions, clicked: Floats) -> Floats:
        """Return the probability that rows are clicked and liked, shape (rows,).

        Args:
            shown: The rows.
            clicked: The probability of their clicks.
        """
        liked: Floats = expit(self.offset + self.of_item[shown.item] + self.of_user[shown.user])
        return np.round(clicked * liked, 9)
