"""The registry of kinds of models; a new kind is a folder beside this file and one line below.

An installed package can add kinds without touching this project: it declares entry points of the group
`shortlist.model_kinds`, each a kind's name and the `module:attribute` of its `ModelKind`.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Final

from models.base import ModelKind
from shortlist.contracts import ShortlistError, did_you_mean
from shortlist.spec.models import ModelSection

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
GROUP: Final = "shortlist.model_kinds"
"""Group of the entry points that declare other packages' kinds."""


def kind_of(name: str) -> ModelKind:
    """Return a kind of model.

    Raises:
        ShortlistError: There is no such kind, or it cannot be loaded.
    """
    # Entry points are read only when needed: reading those of 200 packages takes 0.05 s in every step.
    path = KINDS.get(name) or known_kinds().get(name)
    if path is None:
        kinds = known_kinds()
        raise ShortlistError(f"no kind of model '{name}'{did_you_mean(name, kinds)}; there are {', '.join(kinds)}")
    return _resolve_kind(name, path)


@cache
def known_kinds() -> dict[str, str]:
    """Return the `module:attribute` of every kind, of this project and of installed packages.

    Raises:
        ShortlistError: A package declares a kind whose name is taken.
    """
    kinds: dict[str, str] = dict(KINDS)
    for point in entry_points(group=GROUP):
        if kinds.get(point.name, point.value) != point.value:
            raise ShortlistError(
                f"entry point {GROUP}: '{point.name}' is {kinds[point.name]} and {point.value}; a kind has one name"
            )
        kinds[point.name] = point.value
    return kinds


def sections() -> dict[str, type[ModelSection]]:
    """Return the section class of every kind, by name."""
    return {name: _resolve_kind(name, path).section for name, path in known_kinds().items()}


def _resolve_kind(name: str, path: str) -> ModelKind:
    try:
        kind = resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ShortlistError(f"kind of model '{name}': {path} cannot be loaded: {error}") from error
    if not isinstance(kind, ModelKind) or kind.name != name:
        got_description = f"a kind called '{kind.name}'" if isinstance(kind, ModelKind) else f"a {type(kind).__name__}"
        raise ShortlistError(
            f"kind of model '{name}': {path} is {got_description}; wanted a ModelKind whose section says it"
        )
    return kind
