"""The section of a spec that declares a DLRM."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from models.embedding_section import EmbeddingSection, check_widths


class DLRMModel(EmbeddingSection):
    """Deep learning recommendation model (Naumov et al., 2019)."""

    kind: Literal["dlrm"] = "dlrm"
    """Deep network with embeddings of ids."""
    bottom_mlp: tuple[int, ...] = (64,)
    """Hidden widths of the dense features' network; the embedding width is appended."""
    top_mlp: tuple[int, ...] = (128, 64)
    """Hidden widths of the network above the interaction; one output is appended."""

    @model_validator(mode="after")
    def _widths_are_positive(self) -> Self:
        check_widths(bottom_mlp=self.bottom_mlp, top_mlp=self.top_mlp)
        return self

    def perceptrons(self, floats: int, tables: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the widths of the bottom and the top perceptron."""
        width, vectors = self.embedding_dim, tables + 1
        return (floats, *self.bottom_mlp, width), (width + vectors * (vectors - 1) // 2, *self.top_mlp, self.outputs)
