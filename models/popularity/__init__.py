"""Popularity, the reference baseline of candidates."""

from typing import Final

from models.base import ModelKind
from models.popularity.section import PopularityModel

KIND: Final = ModelKind(section=PopularityModel, ranker="models.popularity.ranker:PopularityRanker")
