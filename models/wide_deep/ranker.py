"""Wide and deep network (Cheng et al., 2016), as a `Ranker`."""

from __future__ import annotations

from models.embedding.ranker import EmbeddingRanker
from models.embedding.training.diagnosis import Diagnosis, diagnose_table
from models.wide_deep.network import WideDeep
from models.wide_deep.section import WideDeepModel
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable


class WideDeepRanker(EmbeddingRanker[WideDeepModel]):
    """Trained as every network over embedded ids; see `models.embedding.ranker`."""

    kind = "wide_deep"
    section_type = WideDeepModel
    model_type = WideDeep


def diagnose(table: DayTable, section: WideDeepModel, runtime: Runtime, count: int) -> Diagnosis:
    """Return the bottleneck of a training; see `diagnose_table`."""
    return diagnose_table(table, section, runtime, count, WideDeep)
