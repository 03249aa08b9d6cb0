"""Deep interest network: a DLRM with attention over a sequence of past items."""

from typing import Final

from models.din.section import DINModel
from models.embedding_section import EMBEDDING_SPACE
from shortlist.ranking.kind import ModelKind, Tuning

KIND: Final = ModelKind(
    section=DINModel,
    ranker="models.din.network:DINRanker",
    export="models.din.export:InterestGraph.add_network",
    runs_as="network",
    tuning=Tuning(space=EMBEDDING_SPACE),
)
