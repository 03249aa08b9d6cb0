"""Several declared models as one: a logistic regression on their scores."""

from typing import Final

from models.base import ModelKind
from models.blend.section import BlendModel

KIND: Final = ModelKind(
    section=BlendModel, ranker="models.blend.ranker:BlendRanker", export="models.blend.export:add_members"
)
