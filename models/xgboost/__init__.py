"""Gradient-boosted trees (XGBoost)."""

from typing import Final

from models.xgboost.section import XGBoostModel
from shortlist.ranking.kind import ModelKind, Tuning
from shortlist.spec.tune import Dimension

KIND: Final = ModelKind(
    section=XGBoostModel,
    ranker="models.xgboost.ranker:XGBoostRanker",
    export="models.xgboost.export:add_trees",
    runs_as="trees",
    forms={"fil": "models.xgboost.export:write_fil"},
    tuning=Tuning(
        space={
            "learning_rate": Dimension(low=0.02, high=0.3, log=True),
            "max_depth": Dimension(low=2, high=9),
            "min_child_weight": Dimension(low=1, high=200, log=True),
            "subsample": Dimension(low=0.5, high=1.0),
            "colsample_bytree": Dimension(low=0.3, high=1.0),
            "reg_lambda": Dimension(low=0.1, high=50, log=True),
        },
        pace="learning_rate",  # small learning rates need more trees
    ),
)
