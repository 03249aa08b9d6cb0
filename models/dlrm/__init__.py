"""The deep learning recommendation model (Naumov et al., 2019) on torch."""

from typing import Final

from models.base import ModelKind
from models.dlrm.section import DLRMModel

KIND: Final = ModelKind(
    section=DLRMModel,
    ranker="models.dlrm.ranker:DLRMRanker",
    export="models.dlrm.export:add_network",
    runs_as="network",
    forms={"torchscript": "models.dlrm.export:write_torchscript"},
    plan="models.planning.plan_inputs:shape_of",
    diagnosis="models.dlrm.ranker:diagnose",
)
