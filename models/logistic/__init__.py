"""Logistic regression on hashed ids, numbers and their bins: a baseline, or a candidate."""

from typing import Final

from models.logistic.section import LogisticModel
from shortlist.ranking.kind import ModelKind

KIND: Final = ModelKind(
    section=LogisticModel,
    ranker="models.logistic.ranker:LogisticRanker",
    export="models.logistic.export:add_terms",
)
