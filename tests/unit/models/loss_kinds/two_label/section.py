"""The section of a spec that declares a network of two labels."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from models.embedding_section import EmbeddingSection


class TwoLabelModel(EmbeddingSection):
    """A perceptron over embeddings and floats, with a weighted loss of two labels."""

    kind: Literal["two_label"] = "two_label"
    """A perceptron with a weighted loss of two labels."""
    labels: tuple[str, ...] = Field(min_length=1, max_length=1)
    """The further label."""
    further_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the further label in the loss."""

    def perceptrons(self, floats: int, tables: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return no layers over floats alone, and one hidden layer over everything."""
        return (), (floats + tables * self.embedding_dim, 16, self.outputs)
