"""Deep and cross network, version 2 (Wang et al., 2021)."""

from typing import Final

from models.dcn.section import DCNModel
from models.embedding_section import EMBEDDING_SPACE
from shortlist.ranking.kind import ModelKind, Tuning
from shortlist.spec.tune import Dimension

KIND: Final = ModelKind(
    section=DCNModel,
    ranker="models.dcn.network:DCNRanker",
    export="models.dcn.export:CrossGraph.add_network",
    runs_as="network",
    plan="models.plan_inputs:shape_of",
    tuning=Tuning(space={**EMBEDDING_SPACE, "cross_layers": Dimension(low=1, high=4)}),
)
