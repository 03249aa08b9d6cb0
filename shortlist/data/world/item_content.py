"""Item contents of a generated world: titles and vectors, and the users' tastes for them.

Shapes: I items, U users, K properties, the first half of them expressed by texts and the other half by images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.data.world.random_streams import Floats, Ints, random_stream
from shortlist.spec.generated_options import GeneratedContent

_PROPERTIES: Final = 8
_TEXT_PROPERTIES: Final = slice(0, _PROPERTIES // 2)
_IMAGE_PROPERTIES: Final = slice(_PROPERTIES // 2, _PROPERTIES)
_TITLE_WORDS: Final = 6
_TITLE_VOCABULARY: Final = np.array([
    [["calm", "slow", "gentle", "quiet", "soft"], ["fast", "loud", "wild", "sharp", "bold"]],
    [["simple", "basic", "easy", "first", "plain"], ["expert", "complex", "deep", "hard", "full"]],
    [["old", "classic", "vintage", "retro", "lost"], ["new", "modern", "fresh", "latest", "next"]],
    [["alone", "private", "solo", "secret", "inner"], ["together", "family", "crowd", "team", "public"]],
])  # fmt: skip
"""Words of titles, by property and its sign."""


@dataclass(frozen=True)
class WorldContent:
    """Latent properties of the items, and the users' tastes for them."""

    properties_IK: Floats  # noqa: N815
    tastes_UK: Floats  # noqa: N815
    common_K: Floats  # noqa: N815
    """Taste that all users share, a unit vector."""
    declared: GeneratedContent
    seed: int

    @classmethod
    def draw(cls, declared: GeneratedContent, users: int, items: int, seed: int) -> Self:
        """Draw the contents of a world; further items at the end do not change the earlier ones."""
        properties = random_stream(seed, "content of items").normal(0, 1, (items, _PROPERTIES))
        tastes = random_stream(seed, "content tastes").normal(0, 1, (users, _PROPERTIES))
        common = random_stream(seed, "content appeal").normal(0, 1, _PROPERTIES)
        return cls(properties, tastes, common / np.linalg.norm(common), declared, seed)

    def appeal(self, user: Ints, item: Ints) -> Floats:
        """Return the contents' appeal to users, with standard deviation `effect`, of the common shape of both."""
        properties = self.properties_IK[item]
        personal_appeal = np.einsum("...k,...k->...", properties, self.tastes_UK[user]) / np.sqrt(_PROPERTIES)
        share = self.declared.personal
        appeal: Floats = np.sqrt(1 - share) * (properties @ self.common_K) + np.sqrt(share) * personal_appeal
        return self.declared.effect * appeal

    def item_columns(self) -> list[pl.Series]:
        """Return the columns of the items' table."""
        return [
            pl.Series("title", self._draw_titles()),
            self._draw_vectors("text_vector", _TEXT_PROPERTIES, self.declared.text_width),
            self._draw_vectors("image_vector", _IMAGE_PROPERTIES, self.declared.image_width),
        ]

    def _draw_vectors(self, name: str, property_slice: slice, width: int) -> pl.Series:
        """Draw vectors that express some properties: a linear map of them, plus noise."""
        properties = self.properties_IK[:, property_slice]
        size = properties.shape[1]
        mapped = properties @ random_stream(self.seed, f"{name} map").normal(0, size**-0.5, (size, width))
        noise = random_stream(self.seed, f"{name} noise").normal(0, self.declared.noise, mapped.shape)
        vectors: npt.NDArray[np.float32] = (mapped + noise).astype(np.float32)
        return pl.Series(name, vectors, dtype=pl.Array(pl.Float32, width))

    def _draw_titles(self) -> list[str]:
        """Draw titles, whose words name stronger properties more often."""
        text_properties = self.properties_IK[:, _TEXT_PROPERTIES]
        random = random_stream(self.seed, "titles").random((len(text_properties), 2, _TITLE_WORDS))
        shares = np.cumsum(np.square(text_properties), axis=1)
        thresholds = random[:, 0] * shares[:, -1:]
        property_index = (
            (thresholds[:, :, None] >= shares[:, None, :]).sum(axis=2).clip(max=text_properties.shape[1] - 1)
        )
        is_positive = (np.take_along_axis(text_properties, property_index, axis=1) > 0).astype(np.int64)
        title_words = _TITLE_VOCABULARY[
            property_index, is_positive, (random[:, 1] * _TITLE_VOCABULARY.shape[2]).astype(np.int64)
        ]
        return [" ".join(title) for title in title_words]
