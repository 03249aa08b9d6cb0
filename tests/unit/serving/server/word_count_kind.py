"""A kind of feature that counts the words of texts: one file, and one line in a registry."""

from __future__ import annotations

from typing import ClassVar, Literal

import polars as pl

from shortlist.features.declared.text_features import TextNumberFeature


class WordCount(TextNumberFeature):
    """Number of words of a text; null for null."""

    kind: Literal["word_count"]
    """Words of a text."""

    own_suffix: ClassVar[str] = "words"

    def derive(self, texts: pl.Series) -> pl.Series:
        """Return the number of words of each text."""
        return texts.str.extract_all(r"\w+").list.len()
