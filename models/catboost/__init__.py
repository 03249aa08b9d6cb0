"""Gradient-boosted oblivious trees that read ids as categories (CatBoost)."""

from typing import Final

from models.catboost.section import CatBoostModel
from shortlist.ranking.kind import ModelKind, Tuning
from shortlist.spec.tune import Dimension

KIND: Final = ModelKind(
    section=CatBoostModel,
    ranker="models.catboost.ranker:CatBoostRanker",
    export="models.catboost.export:add_trees",
    runs_as="trees",
    packages={"catboost": "make setup-catboost"},
    tuning=Tuning(
        space={
            "learning_rate": Dimension(low=0.02, high=0.3, log=True),
            "depth": Dimension(low=3, high=9),
            "l2_leaf_reg": Dimension(low=0.5, high=50, log=True),
            "subsample": Dimension(low=0.5, high=1.0),
            "rsm": Dimension(low=0.3, high=1.0),
        },
        pace="learning_rate",  # small learning rates need more trees
    ),
)
