"""Logistic regression, a baseline."""

from typing import Final

from models.base import ModelKind
from models.logistic.section import LogisticModel

KIND: Final = ModelKind(section=LogisticModel, ranker="models.logistic.ranker:LogisticRanker")
