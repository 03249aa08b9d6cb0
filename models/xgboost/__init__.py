"""Gradient-boosted trees (XGBoost)."""

from typing import Final

from models.base import ModelKind
from models.xgboost.section import XGBoostModel

KIND: Final = ModelKind(
    section=XGBoostModel,
    ranker="models.xgboost.ranker:XGBoostRanker",
    export="models.xgboost.export:add_trees",
    runs_as="trees",
    forms={"fil": "models.xgboost.export:write_fil"},
)
