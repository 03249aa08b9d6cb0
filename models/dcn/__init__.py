"""Deep and cross network, version 2 (Wang et al., 2021)."""

from typing import Final

from models.base import ModelKind
from models.dcn.section import DCNModel

KIND: Final = ModelKind(
    section=DCNModel,
    ranker="models.dcn.ranker:DCNRanker",
    export="models.dcn.export:add_network",
    runs_as="network",
    plan="models.planning.plan_inputs:shape_of",
    diagnosis="models.dcn.ranker:diagnose",
)
