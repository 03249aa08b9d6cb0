"""Registry of source kinds; a kind is added by a line here and a file in `sources`."""

from __future__ import annotations

from typing import Final

from shortlist.slates.retrieval.source import SourceKind
from shortlist.slates.retrieval.sources.als import Als
from shortlist.slates.retrieval.sources.co_visitation import CoVisitation
from shortlist.slates.retrieval.sources.ease import Ease
from shortlist.slates.retrieval.sources.item_vector import ItemVector
from shortlist.slates.retrieval.sources.newest import Newest
from shortlist.slates.retrieval.sources.popular import Popular
from shortlist.slates.retrieval.sources.sequence import SequenceSource
from shortlist.slates.retrieval.sources.two_tower import TwoTower
from shortlist.system.registry import Registry

SOURCE_KINDS: Final = Registry[type[SourceKind]](
    "source_kinds",
    {
        "popular": Popular,
        "newest": Newest,
        "co_visitation": CoVisitation,
        "item_vector": ItemVector,
        "ease": Ease,
        "als": Als,
        "two_tower": TwoTower,
        "sequence": SequenceSource,
    },
)
"""Source kinds by the name in a spec, in the order of messages and of the JSON Schema."""
