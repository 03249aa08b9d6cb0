"""What a generated world may have beyond clicks: contents, a second outcome, an earlier ranker, short lives."""

from __future__ import annotations

from pydantic import Field

from shortlist.spec.base import Section


class GeneratedContent(Section):
    """What items say and look like, which tells how appealing they are before anybody has seen them.

    The items' table gets the columns `title` (a text), `text_vector` and `image_vector`. Each of the vectors carries
    one half of what the content adds to an item's appeal.
    """

    text_width: int = Field(default=16, ge=4, le=4_096)
    """Numbers of a text vector."""
    image_width: int = Field(default=32, ge=4, le=4_096)
    """Numbers of an image vector."""
    effect: float = Field(default=1.0, ge=0.0, le=10.0)
    """How much the content counts, against when and where an item is shown."""
    personal: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of its variance that differs from user to user; the rest is the same for all users."""
    noise: float = Field(default=0.3, ge=0.0, le=10.0)
    """Deviation of what the vectors hold beside the content, in units of the content's own."""


class GeneratedLikes(Section):
    """A second outcome: some clicks are followed by a like. The log gets the column `is_like`, known after the row.

    Which clicks those are depends on users and items in another way than the click does, so the order by one outcome
    is not the order by the other. The probability of a like is planted too: the best possible score is known.
    """

    rate: float = Field(default=0.25, gt=0.0, lt=1.0)
    """Share of the clicks that are followed by a like."""
    effect: float = Field(default=1.0, ge=0.0, le=10.0)
    """Deviation of the log-odds of a like after a click, over users and items."""


class GeneratedPositionBias(Section):
    """An earlier ranker chose the positions: it prefers some items, whether or not users like them.

    Without it, positions say nothing about items. With it, an item that the ranker prefers is clicked more often
    because it is shown further up, and a model that does not know positions takes that for appeal. The log gets the
    column `first_position_probability`: the planted probability of a click had the item been shown first.
    """

    strength: float = Field(default=2.0, ge=0.0, le=100.0)
    """How strictly the ranker follows its preferences, in units of the chance in its order; 0: by chance alone."""


class GeneratedLifetime(Section):
    """Items that live for hours: each appears at a random moment of the log and is shown only for some time after it.

    None of an item's columns says how good it is: its quality is drawn independently of them, so that only its own
    clicks show it. `published_date` is the day on which it appears.
    """

    hours: float = Field(default=6.0, gt=0.0, le=8_760.0)
    """How long an item is shown."""
    effect: float = Field(default=1.0, ge=0.0, le=10.0)
    """Standard deviation of the items' quality, as a multiple of what time and place of an impression count."""
