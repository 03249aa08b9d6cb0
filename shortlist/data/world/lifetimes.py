"""Limited lifetimes of items in a generated world: each is shown only for some hours after it appears."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from shortlist.data.world.random_streams import Floats, Ints, random_stream
from shortlist.spec.generated_options import GeneratedLifetime

_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US


@dataclass(frozen=True)
class Lifetimes:
    """Lifetime and quality of each item."""

    appears_us: Ints
    """First microsecond of each item's lifetime, counted from the first day's midnight, shape (items,)."""
    length_us: int
    quality: Floats
    """Quality of each item, part of its appeal and independent of its columns, shape (items,)."""

    @classmethod
    def draw_lifetimes(cls, declared: GeneratedLifetime, items: int, days: int, seed: int) -> Self:
        """Draw the lifetimes of a world's items.

        The time is divided into equal intervals, as many as there are items, and one item appears in each. A lifetime
        lasts at least two intervals, as the spec requires, so that there is an item to show at every moment.
        """
        random = random_stream(seed, "lifetimes")
        length = round(declared.hours * _HOUR_US)
        stretch = (days * _DAY_US + length) / items
        appears = np.ceil((random.permutation(items) + random.random(items)) * stretch - length).astype(np.int64)
        quality = declared.effect * random_stream(seed, "quality of short-lived items").normal(0, 1, items)
        return cls(appears, length, quality)

    @property
    def appears_on(self) -> Ints:
        """Day on which each item appears, counted from the first day, shape (items,)."""
        return self.appears_us // _DAY_US

    def draw_items(self, popularity: Floats, moments_us: Ints, random: np.random.Generator) -> Ints:
        """Draw an item for each moment, by popularity among those in their lifetime, shape (moments,).

        Args:
            popularity: Weight of each item, shape (items,).
            moments_us: Microseconds since the first day's midnight.
            random: Generator of the draws.
        """
        in_order = np.argsort(self.appears_us, kind="stable")
        appears, sums = self.appears_us[in_order], np.concatenate([[0.0], np.cumsum(popularity[in_order])])
        oldest = np.searchsorted(appears, moments_us - self.length_us, side="right")
        after_newest = np.searchsorted(appears, moments_us, side="right")
        thresholds = sums[oldest] + random.random(moments_us.size) * (sums[after_newest] - sums[oldest])
        # Clipped, because a sum of small numbers may be rounded to that of its neighbour.
        place = np.clip(np.searchsorted(sums, thresholds, side="right") - 1, oldest, after_newest - 1)
        items: Ints = in_order[place]
        return items
