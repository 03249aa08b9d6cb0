"""The interface of a kind of feature is small; what few kinds need is in optional interfaces."""

from __future__ import annotations

import inspect

import pytest

from shortlist.features.declared import feature_interfaces
from shortlist.features.declared.feature_kind import FeatureKind
from shortlist.features.declared.text_features import TextNumberFeature
from shortlist.features.kinds.registry import FEATURE_KINDS
from shortlist.spec import features as spec_features
from shortlist.spec.base import Section
from shortlist.spec.features import Feature

MAX_HOOKS = 12
INTERFACES = [
    interface
    for module in (feature_interfaces, spec_features)
    for _, interface in inspect.getmembers(module, inspect.isclass)
    if interface.__module__ == module.__name__
    and not issubclass(interface, Section)
    and interface not in (feature_interfaces.DeclaredIds,)
]


def hooks_of(kind: type) -> set[str]:
    """Return the names that a kind may override: public attributes and methods that are not final."""
    names = {name: value for name, value in vars(kind).items() if not name.startswith(("_", "model_"))}
    functions = {name: value.fget if isinstance(value, property) else value for name, value in names.items()}
    return {name for name, function in functions.items() if not getattr(function, "__final__", False)}


def test_a_kind_has_at_most_a_dozen_hooks() -> None:
    hooks = hooks_of(Feature) | hooks_of(FeatureKind)
    assert len(hooks) <= MAX_HOOKS, sorted(hooks)


@pytest.mark.parametrize("interface", INTERFACES, ids=lambda interface: interface.__name__)
def test_every_interface_is_implemented_and_documents_its_purpose(interface: type) -> None:
    assert interface.__doc__ is not None
    assert "mplemented by kinds" in interface.__doc__ or "nherited by kinds" in interface.__doc__
    kinds = [*FEATURE_KINDS.values(), TextNumberFeature]  # the base class of text kinds, of which the product has none
    assert any(issubclass(kind, interface) for kind in kinds)
