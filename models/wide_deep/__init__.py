"""Wide and deep network (Cheng et al., 2016)."""

from typing import Final

from models.base import ModelKind, Tuning
from models.wide_deep.section import WideDeepModel
from shortlist.spec.tune import Dimension

KIND: Final = ModelKind(
    section=WideDeepModel,
    ranker="models.wide_deep.ranker:WideDeepRanker",
    export="models.wide_deep.export:add_network",
    runs_as="network",
    plan="models.planning.plan_inputs:shape_of",
    diagnosis="models.wide_deep.ranker:diagnose",
    tuning=Tuning(
        space={
            "learning_rate": Dimension(low=1e-4, high=1e-2, log=True),
            "embedding_learning_rate": Dimension(low=1e-3, high=0.2, log=True),
            "embedding_dim": Dimension(choices=(4, 8, 16, 32)),
            "batch_size": Dimension(choices=(256, 512, 1024, 2048, 4096)),
            "dropout": Dimension(low=0.0, high=0.5),
            "embedding_decay": Dimension(choices=(0.0, 1e-6, 1e-5, 1e-4)),
        },
    ),
)
