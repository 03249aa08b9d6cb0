"""The section of a spec that declares a network of factorised interactions."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from models.embedding_section import EmbeddingSection, check_widths


class FinalNetModel(EmbeddingSection):
    """FinalNet, a network of factorised interactions (Zhu et al., 2023)."""

    kind: Literal["finalnet"] = "finalnet"
    """Layers that multiply their linear outputs, so that each doubles the degree, with embeddings of ids."""
    mlp: tuple[int, ...] = Field(default=(128, 64), min_length=1)
    """Widths of the layers, even numbers: half of each is linear, half a product. One output is appended."""

    sharing: Literal["shared_bottom"] = "shared_bottom"
    """With `labels`: all layers but the last are shared."""

    @model_validator(mode="after")
    def _widths_are_positive(self) -> Self:
        check_widths(mlp=self.mlp)
        if any(width % 2 for width in self.mlp):
            raise ValueError(f"mlp: widths must be even, half linear and half product (got {list(self.mlp)})")
        return self

    def perceptrons(self, floats: int, tables: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return no layers over floats alone, and those of the interactions."""
        return (), (floats + tables * self.embedding_dim, *self.mlp, self.outputs)
