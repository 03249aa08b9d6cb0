"""Gradient-boosted trees (LightGBM)."""

from typing import Final

from models.base import ModelKind
from models.lightgbm.section import LightGBMModel

KIND: Final = ModelKind(
    section=LightGBMModel,
    ranker="models.lightgbm.ranker:LightGBMRanker",
    export="models.lightgbm.export:add_trees",
    runs_as="trees",
)
