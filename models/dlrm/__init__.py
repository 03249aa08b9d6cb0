"""The deep learning recommendation model (Naumov et al., 2019) on torch."""

from typing import Final

from models.dlrm.section import DLRMModel
from shortlist.ranking.kind import ModelKind, Tuning
from shortlist.spec.tune import Dimension

KIND: Final = ModelKind(
    section=DLRMModel,
    ranker="models.dlrm.network:DLRMRanker",
    export="models.dlrm.export:InteractionGraph.add_network",
    runs_as="network",
    forms={"torchscript": "models.dlrm.export:write_torchscript"},
    plan="models.plan_inputs:shape_of",
    tuning=Tuning(
        space={
            "learning_rate": Dimension(low=1e-4, high=1e-2, log=True),
            "embedding_learning_rate": Dimension(low=1e-3, high=0.2, log=True),
            "embedding_dim": Dimension(choices=(4, 8, 16, 32)),
            "top_mlp": Dimension(choices=((32,), (64, 32), (128, 64), (256, 128))),
            "batch_size": Dimension(choices=(256, 512, 1024, 2048, 4096)),
            "dropout": Dimension(low=0.0, high=0.5),
            "embedding_decay": Dimension(choices=(0.0, 1e-6, 1e-5, 1e-4)),
        }
    ),
)
