"""FinalNet, a network of factorised interactions (Zhu et al., 2023)."""

from typing import Final

from models.embedding_section import EMBEDDING_SPACE
from models.finalnet.section import FinalNetModel
from shortlist.ranking.kind import ModelKind, Tuning

KIND: Final = ModelKind(
    section=FinalNetModel,
    ranker="models.finalnet.network:FinalNetRanker",
    export="models.finalnet.export:FinalGraph.add_network",
    runs_as="network",
    plan="models.plan_inputs:shape_of",
    tuning=Tuning(space=EMBEDDING_SPACE),
)
