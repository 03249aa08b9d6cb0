"""How vectors of several modalities (texts, images) enter a model that learns from them."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from shortlist.contracts import did_you_mean
from shortlist.spec.base import Names, Section

Norm = Literal["layer", "l2"]


class VectorInputs(Section):
    """Vectors, each normed and projected by weights of its own, then summed or put side by side.

    A row without a vector has zeros, which `layer` turns into a learnt vector and `l2` leaves as they are.
    """

    of: Names = Field(min_length=1, max_length=16)
    """The vectors by name, one per modality."""
    norm: Norm = "layer"
    """`layer`: mean 0 and deviation 1 over a vector's numbers, then a scale and a shift of each, learnt; `l2`: length
    1."""
    norms: dict[str, Norm] = Field(default={})
    """Other norms for some of them, by name."""
    width: int | None = Field(default=None, ge=1, le=1_024)
    """Numbers that each is projected to; null: `embedding_dim`."""
    combine: Literal["sum", "concat"] = "sum"
    """What becomes of the projections: one vector, their sum; or all of them side by side."""

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        for name in self.norms:
            if name not in self.of:
                raise ValueError(f"norms: '{name}' is not among `of`{did_you_mean(name, self.of)}")
        if len(set(self.of)) < len(self.of):
            raise ValueError(f"of: names a vector twice (got {', '.join(self.of)})")
        return self

    def norm_of(self, name: str) -> Norm:
        """Return the norm of one of the vectors."""
        return self.norms.get(name, self.norm)

    def output_width(self, embedding_dim: int) -> int:
        """Return how many numbers all of them give together."""
        width = self.width or embedding_dim
        return width if self.combine == "sum" else width * len(self.of)
