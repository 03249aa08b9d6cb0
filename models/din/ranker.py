"""Deep interest network as a `Ranker`."""

from __future__ import annotations

from models.din.network import DIN
from models.din.section import DINModel
from models.embedding.ranker import EmbeddingRanker
from models.embedding.reading.layout import AttendedSequence, Layout
from shortlist.contracts import ShortlistError
from shortlist.ranking.inputs import TableFeature


class DINRanker(EmbeddingRanker[DINModel]):
    """Trained as every network over embedded ids; see `models.embedding.ranker`."""

    kind = "din"
    section_type = DINModel
    model_type = DIN

    def _make_layout(self, features: tuple[TableFeature, ...], labels: tuple[str, ...] = ()) -> Layout:
        try:
            return Layout.from_features(features, labels, AttendedSequence(self.section.history, self.section.target))
        except ShortlistError as problem:
            raise type(problem)(f"models.{self.name}.{problem}") from None
