"""Popularity, the reference baseline of candidates."""

from typing import Final

from models.popularity.section import PopularityModel
from shortlist.ranking.kind import ModelKind

KIND: Final = ModelKind(section=PopularityModel, ranker="models.popularity.ranker:PopularityRanker")
