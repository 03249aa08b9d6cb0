"""The kinds of models; a new one is a folder beside this file and one line below.

A package of one's own can add kinds without touching this project: it declares entry points of the group
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
"""Where the `ModelKind` of every kind is."""
GROUP: Final = "shortlist.model_kinds"
"""Entry points of other packages' kinds."""


def kind_of(name: str) -> ModelKind:
    """Return a kind of model.

    Raises:
        ShortlistError: There is no such kind, or what should be it is not.
    """
    # Entry points are asked for only when they are needed: reading those of 200 packages takes 0.05 s in every step.
    where = KINDS.get(name) or known_kinds().get(name)
    if where is None:
        kinds = known_kinds()
        raise ShortlistError(f"no kind of model '{name}'{did_you_mean(name, kinds)}; there are {', '.join(kinds)}")
    return _resolved(name, where)


@cache
def known_kinds() -> dict[str, str]:
    """Return where every kind is: this project's, and those of installed packages.

    Raises:
        ShortlistError: A package gives a kind a name that is taken.
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
    """Return the section of every kind, by its name."""
    return {name: _resolved(name, where).section for name, where in known_kinds().items()}


def _resolved(name: str, where: str) -> ModelKind:
    try:
        found = resolve_name(where)
    except (ImportError, AttributeError, ValueError) as error:
        raise ShortlistError(f"kind of model '{name}': {where} cannot be loaded: {error}") from error
    if not isinstance(found, ModelKind) or found.name != name:
        got = f"a kind called '{found.name}'" if isinstance(found, ModelKind) else f"a {type(found).__name__}"
        raise ShortlistError(f"kind of model '{name}': {where} is {got}; wanted a ModelKind whose section says it")
    return found
