"""Deep interest network: a DLRM with attention over a sequence of past items."""

from typing import Final

from models.base import ModelKind, Tuning
from models.din.section import DINModel
from shortlist.spec.tune import Dimension

KIND: Final = ModelKind(
    section=DINModel,
    ranker="models.din.ranker:DINRanker",
    export="models.din.export:add_network",
    runs_as="network",
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
