"""The section of a spec that declares a wide and deep network."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from models.embedding_section import EmbeddingSection, check_widths


class WideDeepModel(EmbeddingSection):
    """Wide and deep network (Cheng et al., 2016)."""

    kind: Literal["wide_deep"] = "wide_deep"
    """A weight per id, and a deep network over their embeddings, added."""
    deep_mlp: tuple[int, ...] = (128, 64)
    """Hidden widths of the deep network; one output is appended."""

    @model_validator(mode="after")
    def _widths_are_positive(self) -> Self:
        check_widths(deep_mlp=self.deep_mlp)
        return self

    def perceptrons(self, floats: int, tables: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return no layers over floats alone, and the deep ones."""
        return (), (floats + tables * (self.embedding_dim - 1), *self.deep_mlp, self.outputs)
