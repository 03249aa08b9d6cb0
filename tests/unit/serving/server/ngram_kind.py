"""A kind of feature that looks up n-grams of texts in a declared list: one file, and one line in a registry."""

from __future__ import annotations

from typing import ClassVar, Literal

import polars as pl
from pydantic import Field

from shortlist.features.declared.text_features import TextIdsFeature


class NGramLookup(TextIdsFeature):
    """Ids of the declared n-grams that a text holds, 1 for the first declared one, in the order of the text."""

    kind: Literal["ngrams"]
    """N-grams of a text to ids."""
    ngrams: tuple[str, ...] = Field(min_length=1)
    """The n-grams, all of one length, in lower case."""

    own_suffix: ClassVar[str] = "ngrams"

    @property
    def ids_per_column(self) -> int:
        """The declared n-grams, and 0."""
        return len(self.ngrams) + 1

    def derive(self, texts: pl.Series) -> pl.Series:
        """Return the ids of the n-grams of each text."""
        ids, length = {ngram: number for number, ngram in enumerate(self.ngrams, start=1)}, len(self.ngrams[0])
        return pl.Series(
            [None if text is None else _ids(text.lower(), length, ids) for text in texts], dtype=pl.List(pl.Int64)
        )


def _ids(text: str, length: int, ids: dict[str, int]) -> list[int]:
    ngrams = (text[start : start + length] for start in range(len(text) - length + 1))
    return [ids[ngram] for ngram in ngrams if ngram in ids]
