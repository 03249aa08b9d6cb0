"""Several declared models as one: a logistic regression on their scores."""

from typing import Final

from models.blend.section import BlendModel
from shortlist.ranking.kind import ModelKind

KIND: Final = ModelKind(
    section=BlendModel, ranker="models.blend.ranker:BlendRanker", export="models.blend.export:add_members"
)
