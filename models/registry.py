"""The registry of kinds of models; a new kind is a folder beside this file and one line below.

An installed package can add kinds without touching this project: it declares entry points of the group
`shortlist.model_kinds`, each a kind's name and the `module:attribute` of its `ModelKind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from models.base import ModelKind
from shortlist.contracts import ShortlistError, did_you_mean
from shortlist.spec.models import ModelSection
from shortlist.system.registry import AddressRegistry

KINDS: Final = {
    "xgboost": "models.xgboost:KIND",
    "lightgbm": "models.lightgbm:KIND",
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


def kind_of(name: str) -> ModelKind:
    """Return a kind of model.

    Raises:
        ShortlistError: There is no such kind, or it cannot be loaded.
    """
    if name not in MODEL_KINDS and name not in known_kinds():
        kinds = known_kinds()
        raise ShortlistError(f"no kind of model '{name}'{did_you_mean(name, kinds)}; there are {', '.join(kinds)}")
    kind = MODEL_KINDS.load(name)
    if not isinstance(kind, ModelKind) or kind.name != name:
        got_description = f"a kind called '{kind.name}'" if isinstance(kind, ModelKind) else f"a {type(kind).__name__}"
        raise ShortlistError(
            f"kind of model '{name}': {MODEL_KINDS[name]} is {got_description}; wanted a ModelKind whose section says"
            " it"
        )
    return kind


def known_kinds() -> Mapping[str, str]:
    """Return the `module:attribute` of every kind, of this project and of installed packages.

    Raises:
        ShortlistError: A package declares a kind whose name is taken.
    """
    return MODEL_KINDS.complete()


def sections() -> dict[str, type[ModelSection]]:
    """Return the section class of every kind, by name."""
    return {name: kind_of(name).section for name in known_kinds()}
