"""Gradient-boosted trees (LightGBM)."""

from typing import Final

from models.lightgbm.section import LightGBMModel
from shortlist.ranking.kind import ModelKind, Tuning
from shortlist.spec.tune import Dimension

KIND: Final = ModelKind(
    section=LightGBMModel,
    ranker="models.lightgbm.ranker:LightGBMRanker",
    export="models.lightgbm.export:add_trees",
    runs_as="trees",
    tuning=Tuning(
        space={
            "learning_rate": Dimension(low=0.02, high=0.3, log=True),
            "num_leaves": Dimension(low=4, high=128, log=True),
            "min_data_in_leaf": Dimension(low=5, high=500, log=True),
            "bagging_fraction": Dimension(low=0.5, high=1.0),
            "feature_fraction": Dimension(low=0.3, high=1.0),
            "lambda_l2": Dimension(low=0.1, high=50, log=True),
        },
        pace="learning_rate",  # small learning rates need more trees
    ),
)
