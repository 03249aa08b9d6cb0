"""A kind of model with its own loss of a row: the focal loss (Lin et al., 2017)."""

from typing import Final

from shortlist.ranking.kind import ModelKind
from tests.unit.models.loss_kinds.focal.section import FocalModel

KIND: Final = ModelKind(section=FocalModel, ranker="tests.unit.models.loss_kinds.focal.ranker:FocalRanker")
