"""Deep and cross network, version 2 (Wang et al., 2021)."""

from typing import Final

from models.base import ModelKind, Tuning
from models.dcn.section import DCNModel
from shortlist.spec.tune import Dimension

KIND: Final = ModelKind(
    section=DCNModel,
    ranker="models.dcn.ranker:DCNRanker",
    export="models.dcn.export:add_network",
    runs_as="network",
    plan="models.planning.plan_inputs:shape_of",
    diagnosis="models.dcn.ranker:diagnose",
    tuning=Tuning(
        space={
            "learning_rate": Dimension(low=1e-4, high=1e-2, log=True),
            "embedding_learning_rate": Dimension(low=1e-3, high=0.2, log=True),
            "embedding_dim": Dimension(choices=(4, 8, 16, 32)),
            "batch_size": Dimension(choices=(256, 512, 1024, 2048, 4096)),
            "dropout": Dimension(low=0.0, high=0.5),
            "embedding_decay": Dimension(choices=(0.0, 1e-6, 1e-5, 1e-4)),
            "cross_layers": Dimension(low=1, high=4),
        },
    ),
)
