"""The section of a spec that declares a deep and cross network."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from models.embedding_section import EmbeddingSection, check_widths


class DCNModel(EmbeddingSection):
    """Deep and cross network, version 2 (Wang et al., 2021)."""

    kind: Literal["dcn"] = "dcn"
    """Explicit crosses of all inputs, then a deep network, with embeddings of ids."""
    cross_layers: int = Field(default=2, ge=1, le=8)
    """Layers of crosses; each raises the degree of the polynomials by one."""
    cross_rank: int | None = Field(default=64, ge=1)
    """Rank of every layer's matrix; null: full, as wide as all inputs together."""
    deep_mlp: tuple[int, ...] = (128, 64)
    """Hidden widths of the network above the crosses; one output is appended."""

    @model_validator(mode="after")
    def _widths_are_positive(self) -> Self:
        check_widths(deep_mlp=self.deep_mlp)
        return self

    def perceptrons(self, floats: int, tables: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return no layers over floats alone, and the chain of crosses and deep layers."""
        inputs = floats + tables * self.embedding_dim
        cross = (inputs,) if self.cross_rank is None else (self.cross_rank, inputs)
        return (), (inputs, *cross * self.cross_layers, *self.deep_mlp, self.outputs)
