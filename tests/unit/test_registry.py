"""A registry holds the project's extensions, and adds those of installed packages when it is completed."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
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


def test_addresses_are_loaded_separately(points: list[EntryPoint]) -> None:
    points += [shape("square"), shape("broken", "no_such_package:Square")]
    shapes = AddressRegistry("shapes", {}).complete()
    assert dict(shapes) == {"square": "their_package:Square", "broken": "no_such_package:Square"}
    assert shapes.load("square") is Square
    with pytest.raises(ShortlistError, match=r"shortlist\.shapes: 'broken': no_such_package:Square cannot be loaded"):
        shapes.load("broken")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a project's shapes."""
    monkeypatch.setattr(registry_module, "project_root", lambda: tmp_path)
    folder = tmp_path / "pipelines/shapes"
    folder.mkdir(parents=True)
    return folder


TRIANGLE = "class Triangle:\n    pass\n\n\nSHAPE = Triangle\n"


@pytest.mark.usefixtures("points")
def test_a_file_of_the_project_adds_an_extension_of_its_name(folder: Path) -> None:
    (folder / "triangle.py").write_text(TRIANGLE)
    (folder / "_shared.py").write_text("raise AssertionError")
    shapes = Registry[type]("shapes", {"circle": Circle}, file_attribute="SHAPE").complete()
    assert (list(shapes), shapes["triangle"].__name__) == (["circle", "triangle"], "Triangle")
    assert shapes.added == {"triangle": str(folder / "triangle.py")}
    assert dict(Registry[type]("shapes", {"circle": Circle}).complete()) == {"circle": Circle}


@pytest.mark.usefixtures("points")
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("circle", TRIANGLE, "'circle' is test_registry:Circle and circle.py; give one of them another name"),
        ("triangle", "SHAPE = 3", "SHAPE is of type int; wanted a value of type type"),
        ("triangle", "SHAP = 3", "SHAPE is missing; wanted a value of type type"),
        ("triangle", "SHAPE = (", "cannot be loaded: SyntaxError: '(' was never closed"),
        ("triangle", "SHAPE = missing", "cannot be loaded: NameError: name 'missing' is not defined"),
    ],
)
def test_a_file_that_is_no_extension_is_refused_with_its_path(folder: Path, name: str, text: str, message: str) -> None:
    (folder / f"{name}.py").write_text(text)
    with pytest.raises(ShortlistError) as refusal:
        Registry[type]("shapes", {"circle": Circle}, file_attribute="SHAPE").complete()
    assert str(refusal.value).replace(__name__, "test_registry").startswith(f"{folder / name}.py: {message}")
