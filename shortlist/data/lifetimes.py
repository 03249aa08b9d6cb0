"""The lives of a generated world's items: each is shown for some hours after it appears, and then never again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from shortlist.data.random_streams import Floats, Ints, random_stream
from shortlist.spec.generated_options import GeneratedLifetime

_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US


@dataclass(frozen=True)
class Lifetimes:
    """When each item is shown, and how good it is."""

    appears_us: Ints
    """First microsecond of each item's life, counted from the first day's midnight, shape (items,)."""
    length_us: int
    quality: Floats
    """What an item adds to its appeal, drawn for it alone, shape (items,)."""

    @classmethod
    def of(cls, declared: GeneratedLifetime, items: int, days: int, seed: int) -> Self:
        """Return the lives of a world's items.

        One item appears in each of as many equal stretches of time as there are items. With at least two stretches to
        a life, which the spec demands, there is an item to show at every moment.
        """
        random = random_stream(seed, "lifetimes")
        length = round(declared.hours * _HOUR_US)
        stretch = (days * _DAY_US + length) / items
        appears = np.ceil((random.permutation(items) + random.random(items)) * stretch - length).astype(np.int64)
        quality = declared.effect * random_stream(seed, "quality of short-lived items").normal(0, 1, items)
        return cls(appears, length, quality)

    @property
    def appears_on(self) -> Ints:
        """The day on which each item appears, counted from the first day, shape (items,)."""
        return self.appears_us // _DAY_US

    def draw(self, popularity: Floats, moments_us: Ints, random: np.random.Generator) -> Ints:
        """Return an item for each moment, by popularity among those that are shown then, shape (moments,).

        Args:
            popularity: Weight of each item, shape (items,).
            moments_us: Microseconds since the first day's midnight.
            random: Where the draws come from.
        """
        in_order = np.argsort(self.appears_us, kind="stable")
        appears, sums = self.appears_us[in_order], np.concatenate([[0.0], np.cumsum(popularity[in_order])])
        oldest = np.searchsorted(appears, moments_us - self.length_us, side="right")
        after_newest = np.searchsorted(appears, moments_us, side="right")
        drawn = sums[oldest] + random.random(moments_us.size) * (sums[after_newest] - sums[oldest])
        # The bounds hold where a sum of small numbers is rounded to that of its neighbour.
        place = np.clip(np.searchsorted(sums, drawn, side="right") - 1, oldest, after_newest - 1)
        shown: Ints = in_order[place]
        return shown
