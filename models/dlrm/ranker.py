"""The DLRM as a `Ranker`."""

from __future__ import annotations

from models.dlrm.network import DLRM
from models.dlrm.section import DLRMModel
from models.embedding.ranker import EmbeddingRanker
from models.embedding.training.diagnosis import Diagnosis, diagnose_table
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable


class DLRMRanker(EmbeddingRanker[DLRMModel]):
    """Embeddings of ids, perceptrons over floats, and the dot products between them."""

    kind = "dlrm"
    section_type = DLRMModel
    model_type = DLRM


def diagnose(table: DayTable, section: DLRMModel, runtime: Runtime, count: int) -> Diagnosis:
    """Return the bottleneck of a training on the label alone; see `diagnose_table`."""
    section = section.model_copy(update={"labels": (), "sharing": "shared_bottom"})
    return diagnose_table(table, section, runtime, count, DLRM)
