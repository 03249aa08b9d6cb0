"""A kind of model whose loss weighs its label and one further label as declared."""

from typing import Final

from shortlist.ranking.kind import ModelKind
from tests.unit.models.loss_kinds.two_label.section import TwoLabelModel

KIND: Final = ModelKind(section=TwoLabelModel, ranker="tests.unit.models.loss_kinds.two_label.ranker:TwoLabelRanker")
