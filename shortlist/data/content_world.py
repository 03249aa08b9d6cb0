"""The contents of a generated world: titles and vectors of items, and which of them users like.

Shapes: I items, U users, K properties, the first half of them told by texts and the other half by images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.data.random_streams import Floats, Ints, random_stream
from shortlist.spec.generated_options import GeneratedContent

_PROPERTIES: Final = 8
_TEXT: Final = slice(0, _PROPERTIES // 2)
_IMAGE: Final = slice(_PROPERTIES // 2, _PROPERTIES)
_TITLE_WORDS: Final = 6
_WORDS: Final = np.array([
    [["calm", "slow", "gentle", "quiet", "soft"], ["fast", "loud", "wild", "sharp", "bold"]],
    [["simple", "basic", "easy", "first", "plain"], ["expert", "complex", "deep", "hard", "full"]],
    [["old", "classic", "vintage", "retro", "lost"], ["new", "modern", "fresh", "latest", "next"]],
    [["alone", "private", "solo", "secret", "inner"], ["together", "family", "crowd", "team", "public"]],
])  # fmt: skip
"""Words by property, by its sign."""


@dataclass(frozen=True)
class Content:
    """What the items say and look like."""

    properties_IK: Floats  # noqa: N815
    tastes_UK: Floats  # noqa: N815
    common_K: Floats  # noqa: N815
    """What all users like; of length 1."""
    declared: GeneratedContent
    seed: int

    @classmethod
    def of(cls, declared: GeneratedContent, users: int, items: int, seed: int) -> Self:
        """Return the contents of a world; items that come last change nothing for the ones before them."""
        properties = random_stream(seed, "content of items").normal(0, 1, (items, _PROPERTIES))
        tastes = random_stream(seed, "content tastes").normal(0, 1, (users, _PROPERTIES))
        common = random_stream(seed, "content appeal").normal(0, 1, _PROPERTIES)
        return cls(properties, tastes, common / np.linalg.norm(common), declared, seed)

    def appeal(self, user: Ints, item: Ints) -> Floats:
        """Return what the contents of items add to their appeal to users; deviation `effect` over all pairs."""
        properties = self.properties_IK[item]
        own = np.einsum("nk,nk->n", properties, self.tastes_UK[user]) / np.sqrt(_PROPERTIES)
        share = self.declared.personal
        mixed: Floats = np.sqrt(1 - share) * (properties @ self.common_K) + np.sqrt(share) * own
        return self.declared.effect * mixed

    def columns(self) -> list[pl.Series]:
        """Return the columns of the items' table."""
        return [
            pl.Series("title", self._titles()),
            self._vectors("text_vector", _TEXT, self.declared.text_width),
            self._vectors("image_vector", _IMAGE, self.declared.image_width),
        ]

    def _vectors(self, name: str, told: slice, width: int) -> pl.Series:
        """Return vectors that tell some properties: a linear map of them, and noise."""
        properties = self.properties_IK[:, told]
        size = properties.shape[1]
        mapped = properties @ random_stream(self.seed, f"{name} map").normal(0, size**-0.5, (size, width))
        noise = random_stream(self.seed, f"{name} noise").normal(0, self.declared.noise, mapped.shape)
        vectors: npt.NDArray[np.float32] = (mapped + noise).astype(np.float32)
        return pl.Series(name, vectors, dtype=pl.Array(pl.Float32, width))

    def _titles(self) -> list[str]:
        """Return titles: a property is named the more often, the stronger it is."""
        told = self.properties_IK[:, _TEXT]
        random = random_stream(self.seed, "titles").random((len(told), 2, _TITLE_WORDS))
        shares = np.cumsum(np.square(told), axis=1)
        drawn = random[:, 0] * shares[:, -1:]
        named = (drawn[:, :, None] >= shares[:, None, :]).sum(axis=2).clip(max=told.shape[1] - 1)
        positive = (np.take_along_axis(told, named, axis=1) > 0).astype(np.int64)
        words = _WORDS[named, positive, (random[:, 1] * _WORDS.shape[2]).astype(np.int64)]
        return [" ".join(title) for title in words]
