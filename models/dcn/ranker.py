"""Deep and cross network, version 2 (Wang et al., 2021), as a `Ranker`."""

from __future__ import annotations

from models.dcn.network import DCN
from models.dcn.section import DCNModel
from models.embedding.ranker import EmbeddingRanker
from models.embedding.training.diagnosis import Diagnosis, diagnose_table
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable


class DCNRanker(EmbeddingRanker[DCNModel]):
    """Trained as every network over embedded ids; see `models.embedding.ranker`."""

    kind = "dcn"
    section_type = DCNModel
    model_type = DCN


def diagnose(table: DayTable, section: DCNModel, runtime: Runtime, count: int) -> Diagnosis:
    """Return the bottleneck of a training; see `diagnose_table`."""
    return diagnose_table(table, section, runtime, count, DCN)
