"""FinalNet, a network of factorised interactions (Zhu et al., 2023), as a `Ranker`."""

from __future__ import annotations

from models.embedding.ranker import EmbeddingRanker
from models.embedding.training.diagnosis import Diagnosis, diagnose_table
from models.finalnet.network import FinalNet
from models.finalnet.section import FinalNetModel
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable


class FinalNetRanker(EmbeddingRanker[FinalNetModel]):
    """Trained as every network over embedded ids; see `models.embedding.ranker`."""

    kind = "finalnet"
    section_type = FinalNetModel
    model_type = FinalNet


def diagnose(table: DayTable, section: FinalNetModel, runtime: Runtime, count: int) -> Diagnosis:
    """Return the bottleneck of a training; see `diagnose_table`."""
    return diagnose_table(table, section, runtime, count, FinalNet)
