"""The section of a spec that declares a focal network."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from models.embedding_section import EmbeddingSection


class FocalModel(EmbeddingSection):
    """A perceptron over embeddings and floats, trained with the focal loss."""

    kind: Literal["focal"] = "focal"
    """A perceptron with the focal loss."""
    objective: Literal["focal"] = "focal"  # type: ignore[assignment] # the kind has one objective of its own
    """The focal loss of every row."""
    focus: float = Field(default=2.0, ge=0)
    """Exponent of the share that a row's probability falls short of 1; 0 is the log loss."""

    def perceptrons(self, floats: int, tables: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return no layers over floats alone, and one hidden layer over everything."""
        return (), (floats + tables * self.embedding_dim, 16, self.outputs)
