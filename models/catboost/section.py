"""The section of a spec that declares oblivious trees grown by CatBoost."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from models.objective_section import ObjectiveSection
from shortlist.spec.base import Names


class CatBoostModel(ObjectiveSection):
    """Gradient-boosted trees that read ids as categories, with one comparison per level; on the CPU, by one process."""

    kind: Literal["catboost"] = "catboost"
    """Gradient-boosted oblivious trees (Prokhorenkova et al., 2018)."""
    features: Names = Field(min_length=1)
    """Features it reads; `*` and `?` match several. Ids are categories: trees compare the label rate and the number of
    rows of an id on the training days, not its number."""
    rounds: int = Field(default=500, ge=1)
    """Most trees."""
    early_stopping_rounds: int = Field(default=30, ge=1)
    """Stop when the validation days have not improved for this many trees: their log loss, or nDCG@10 where order is
    learnt."""
    refit: bool = True
    """After early stopping, train once more on training and validation days with the rounds found."""
    learning_rate: float = Field(default=0.08, gt=0, le=1)
    """Shrinkage of each tree."""
    depth: int = Field(default=6, ge=1, le=10)
    """Depth of each tree: all nodes of a level compare the same, so a tree has 2 to the power of this many leaves."""
    l2_leaf_reg: float = Field(default=3.0, ge=0)
    """L2 penalty on leaf weights."""
    subsample: float = Field(default=0.8, gt=0, le=1)
    """Share of rows per tree, drawn by the size of their gradients."""
    rsm: float = Field(default=1.0, gt=0, le=1)
    """Share of features per comparison."""
    max_bin: int = Field(default=254, ge=2, le=4096)
    """Histogram bins per number."""
    one_hot_max_size: int = Field(default=2, ge=2, le=255)
    """Ids of at most this many values are compared by value; the others by their statistics."""
    max_ctr_complexity: Literal[1, 2] = 1
    """`1`: statistics of single ids. `2`: also of pairs of ids, and of an id together with comparisons of a tree; the
    graph then looks up every such combination of the training rows, so it is larger and slower."""
    ctr_leaf_count_limit: int | None = Field(default=None, ge=1)
    """Most values of a statistic that are kept, those with the most rows; null: all."""
