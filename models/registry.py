"""The project's kinds of models; a new kind is a folder beside this file and one line below.

An installed package can add kinds without touching this project: it declares entry points of the group
`shortlist.model_kinds`, each a kind's name and the `module:attribute` of its `ModelKind`.
"""

from __future__ import annotations

from typing import Final

from shortlist.system.registry import AddressRegistry

KINDS: Final = {
    "xgboost": "models.xgboost:KIND",
    "lightgbm": "models.lightgbm:KIND",
    "catboost": "models.catboost:KIND",
    "dlrm": "models.dlrm:KIND",
    "dcn": "models.dcn:KIND",
    "wide_deep": "models.wide_deep:KIND",
    "finalnet": "models.finalnet:KIND",
    "din": "models.din:KIND",
    "logistic": "models.logistic:KIND",
    "blend": "models.blend:KIND",
    "popularity": "models.popularity:KIND",
}
"""`module:attribute` of the `ModelKind` of every kind."""
MODEL_KINDS: Final = AddressRegistry("model_kinds", KINDS)
"""Kinds of this project and of installed packages."""
NETWORKS: Final = AddressRegistry(
    "networks",
    {
        "train_sequence_source": "models.sequence.train:train",
        "export_sequence_source": "models.sequence.export:export",
        "train_sequence_score": "models.sequence.scores:train",
        "train_two_tower_source": "models.two_tower.train:train",
    },
)
"""Functions that train and export the networks inside candidate sources and features; they need torch."""
