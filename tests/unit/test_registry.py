"""A registry holds the project's extensions, and adds those of installed packages when it is completed."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from shortlist.contracts import ShortlistError
from shortlist.system import registry as registry_module
from shortlist.system.registry import AddressRegistry, Registry


class Circle:
    """An extension of the project."""


class Square:
    """An extension of an installed package."""


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The entry points of all installed packages; `their_package` can be imported."""
    installed: list[EntryPoint] = []
    package = ModuleType("their_package")
    package.Square = Square  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_package", package)
    monkeypatch.setattr(
        registry_module, "entry_points", lambda group: [point for point in installed if point.group == group]
    )
    return installed


def shape(name: str, value: str = "their_package:Square") -> EntryPoint:
    return EntryPoint(name, value, "shortlist.shapes")


def test_a_completed_registry_holds_the_extensions_of_installed_packages(points: list[EntryPoint]) -> None:
    points += [shape("square"), shape("square"), EntryPoint("other", "their_package:Square", "shortlist.colours")]
    shapes = Registry[type]("shapes", {"circle": Circle})
    assert dict(shapes) == {"circle": Circle}
    assert dict(shapes.complete()) == {"circle": Circle, "square": Square}


def test_a_name_that_is_taken_is_refused_with_both_extensions(points: list[EntryPoint]) -> None:
    points.append(shape("circle"))
    message = rf"entry point shortlist\.shapes: 'circle' is {__name__}:Circle and their_package:Square; give one of"
    with pytest.raises(ShortlistError, match=message):
        Registry[type]("shapes", {"circle": Circle}).complete()


@pytest.mark.parametrize("value", ["their_package:Nothing", "no_such_package:Square"])
def test_an_extension_that_cannot_be_loaded_is_refused(points: list[EntryPoint], value: str) -> None:
    points.append(shape("square", value))
    with pytest.raises(ShortlistError, match=rf"shortlist\.shapes: 'square': {value} cannot be loaded"):
        Registry[type]("shapes", {}).complete()


def test_addresses_are_loaded_one_by_one(points: list[EntryPoint]) -> None:
    points += [shape("square"), shape("broken", "no_such_package:Square")]
    shapes = AddressRegistry("shapes", {}).complete()
    assert dict(shapes) == {"square": "their_package:Square", "broken": "no_such_package:Square"}
    assert shapes.load("square") is Square
    with pytest.raises(ShortlistError, match=r"shortlist\.shapes: 'broken': no_such_package:Square cannot be loaded"):
        shapes.load("broken")
