"""Wide and deep network (Cheng et al., 2016)."""

from typing import Final

from models.embedding_section import EMBEDDING_SPACE
from models.wide_deep.section import WideDeepModel
from shortlist.ranking.kind import ModelKind, Tuning

KIND: Final = ModelKind(
    section=WideDeepModel,
    ranker="models.wide_deep.network:WideDeepRanker",
    export="models.wide_deep.export:WideDeepGraph.add_network",
    runs_as="network",
    plan="models.plan_inputs:shape_of",
    tuning=Tuning(space=EMBEDDING_SPACE),
)
