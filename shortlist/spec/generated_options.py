"""Options of the generated world: contents, likes, position bias, limited lifetimes, and its old recommender."""

from __future__ import annotations

from pydantic import Field

from shortlist.spec.base import Section


class GeneratedContent(Section):
    """Texts and images of items, which predict how appealing an item is before its first impression.

    The items' table gets the columns `title` (a text), `text_vector` and `image_vector`. Each of the vectors holds one
    half of the content's contribution to an item's appeal.
    """

    text_width: int = Field(default=16, ge=4, le=4_096)
    """Numbers of a text vector."""
    image_width: int = Field(default=32, ge=4, le=4_096)
    """Numbers of an image vector."""
    effect: float = Field(default=1.0, ge=0.0, le=10.0)
    """Weight of the content in the click probability, relative to time and place of the impression."""
    personal: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of its variance that differs from user to user; the rest is the same for all users."""
    noise: float = Field(default=0.3, ge=0.0, le=10.0)
    """Standard deviation of the noise in the vectors, as a multiple of the content's own."""


class GeneratedLikes(Section):
    """A second outcome: some clicks are followed by a like. The log gets the column `is_like`, known after the row.

    The like depends on users and items in another way than the click, so that ranking by one outcome differs from
    ranking by the other. The probability of a like is planted too, so that its best possible score is known.
    """

    rate: float = Field(default=0.25, gt=0.0, lt=1.0)
    """Share of the clicks that are followed by a like."""
    effect: float = Field(default=1.0, ge=0.0, le=10.0)
    """Standard deviation of the log-odds of a like after a click, over users and items."""


class GeneratedPositionBias(Section):
    """An earlier ranker that chose the positions and prefers some items, independently of the users' tastes.

    Without it, positions are independent of the items. With it, a preferred item is clicked more often because it is
    shown further up, and a model without positions mistakes that for appeal. The log gets the column
    `first_position_probability`: the planted probability of a click if the item had been shown first.
    """

    strength: float = Field(default=2.0, ge=0.0, le=100.0)
    """Weight of the ranker's preferences, relative to the random part of its order; 0: a random order."""


class GeneratedLifetime(Section):
    """Items with a limited lifetime: each appears at a random time of the log and is shown for some hours only.

    An item's quality is drawn independently of its columns, so that only its own clicks predict it. `published_date` is
    the day on which it appears.
    """

    hours: float = Field(default=6.0, gt=0.0, le=8_760.0)
    """How long an item is shown."""
    effect: float = Field(default=1.0, ge=0.0, le=10.0)
    """Standard deviation of the items' quality, as a multiple of the effect of an impression's time and place."""


class GeneratedRecommender(Section):
    """An old recommender that showed the log's items, with known probabilities.

    Each page of a visit is a request: ten different items drawn one after another in proportion to their weights, seen
    down to the depth at which the user leaves. Rows that were not seen are not in the log. A weight is the item's
    popularity times an estimate of the appeal to the user's country and age group. The log gets the columns
    `request_id`, `place` (the position, as an answer logs it), `policy`, `propensity` (probability of the item at its
    place, over all draws) and `randomized`.
    """

    randomized: float = Field(default=0.15, ge=0.0, le=1.0)
    """Share of requests that show items at random, each published item with the same probability."""
    taste: float = Field(default=3.0, ge=0.0, le=5.0)
    """Effect of the appeal to a segment on the logarithm of the weight; 0: popularity alone."""
    noise: float = Field(default=0.5, ge=0.0, le=2.0)
    """Standard deviation of the errors of the estimated appeal, as a multiple of the appeal's own."""
