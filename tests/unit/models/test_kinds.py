"""Kinds of models: one registry names them, packages add to it, and nothing else knows one by name."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest

from models import registry
from models.registry import KINDS
from shortlist.contracts import ShortlistError
from shortlist.ranking.kind import DeclaredModel, ModelKind
from shortlist.ranking.ranker import Ranker
from shortlist.ranking.registry import kind_of, sections
from shortlist.spec.models import ModelSection
from shortlist.system import registry as system_registry
from shortlist.system.registry import AddressRegistry

ROOT = Path(__file__).parents[3]
ALLOWED = {
    "models/registry.py": "it is where they are named",
    "models/two_tower/train.py": "popularity is a number of its own there",
    "shortlist/loop/loop_page.py": "the popular items are a policy there",
    "shortlist/loop/policies.py": "the same",
    "shortlist/serving/export/fil.py": "Triton's FIL backend looks for a file called xgboost.ubj",
    "shortlist/serving/export/triton_config.py": "the same backend calls that format xgboost_ubj",
}
"""Modules outside `models/<kind>/` that may name a kind, and why."""


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_has_the_name_of_the_registry(name: str) -> None:
    kind = kind_of(name)
    assert kind.name == name
    ranker: type[Ranker[Any]] = kind.load("ranker")
    assert (ranker.kind, ranker.section_type) == (name, kind.section)
    assert bool(kind.export) == ("candidate" in str(kind.section.model_fields["role"].annotation))


def test_a_kind_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(ShortlistError, match=r"no kind of model 'xgbost'; did you mean 'xgboost'\?; there are xgb"):
        kind_of("xgbost")


def test_a_missing_part_of_a_kind_is_named() -> None:
    with pytest.raises(ShortlistError, match="kind popularity: has no export"):
        kind_of("popularity").load("export")


class Elsewhere(ModelSection):
    """Section of a kind of another package."""

    kind: Literal["elsewhere"] = "elsewhere"


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """Entry points as installed packages declare them."""
    entry_points: list[EntryPoint] = []
    package = ModuleType("their_package")
    package.KIND = ModelKind(section=Elsewhere, ranker="their_package:Ranker")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_package", package)
    monkeypatch.setattr(
        system_registry, "entry_points", lambda group: [point for point in entry_points if point.group == group]
    )
    monkeypatch.setattr(registry, "MODEL_KINDS", AddressRegistry("model_kinds", KINDS))
    return entry_points


def point(name: str, value: str = "their_package:KIND") -> EntryPoint:
    return EntryPoint(name, value, registry.MODEL_KINDS.group)


def test_an_installed_package_adds_a_kind(points: list[EntryPoint]) -> None:
    points.append(point("elsewhere"))
    assert kind_of("elsewhere").section is Elsewhere
    assert list(sections()) == [*KINDS, "elsewhere"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("xgboost", "their_package:KIND", "entry point shortlist.model_kinds: 'xgboost' is models.xgboost:KIND and"),
        ("other", "their_package:KIND", "'other': their_package:KIND is a kind called 'elsewhere'; wanted a ModelKind"),
        ("other", "their_package:Nothing", "'other': their_package:Nothing cannot be loaded"),
        ("other", "no_such_package:KIND", "'other': no_such_package:KIND cannot be loaded: No module named"),
        ("other", "json:dumps", "'other': json:dumps is a function; wanted a ModelKind"),
    ],
)
def test_a_package_that_declares_nonsense_is_refused(
    points: list[EntryPoint], name: str, value: str, message: str
) -> None:
    points.append(point(name, value))
    with pytest.raises(ShortlistError, match=message):
        sections()


def test_the_graphs_text_of_a_model_depends_on_its_meaning_alone() -> None:
    model = DeclaredModel(name="trees", section={"kind": "xgboost", "role": "candidate", "max_depth": 3})
    reordered = DeclaredModel(name="trees", section={"max_depth": 3, "role": "candidate", "kind": "xgboost"})
    assert model.text == reordered.text
    assert DeclaredModel.read(model.text) == model
    assert (model.kind, model.role) == ("xgboost", "candidate")


def test_nothing_outside_a_kinds_folder_knows_it_by_name() -> None:
    modules = [
        path.relative_to(ROOT).as_posix()
        for top in ("components", "feature_repo", "models", "monitoring", "pipelines", "shortlist")
        for path in (ROOT / top).rglob("*.py")
    ]
    outside = [path for path in modules if not path.startswith(tuple(f"models/{kind}/" for kind in KINDS))]
    assert len(outside) > 300
    kind_names = re.compile("|".join(KINDS))  # a text without any of them need not be read as code
    read = [path for path in outside if kind_names.search((ROOT / path).read_text())]
    named = {path: names for path in read if (names := kinds_named_in(ROOT / path))}
    assert {path: names for path, names in named.items() if path not in ALLOWED} == {}
    assert set(ALLOWED) <= set(named)  # and every exception is needed


def kinds_named_in(path: Path) -> set[str]:
    """Return the kinds that a module's code names: in texts but docstrings, as imports, as names of things.

    The popularity of an item is a thing of its own; as a name of things the word says nothing about kinds.
    """
    tree = ast.parse(path.read_text("utf-8"))
    sentences = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    identifiers: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in sentences:
                identifiers += re.findall(r"[a-z0-9]+", text)
            case ast.ImportFrom(module=str(module)):
                identifiers += module.split(".")
            case ast.Import(names=names):
                identifiers += [part for alias in names for part in alias.name.split(".")]
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                identifiers += [name] if name != "popularity" else []
    return set(identifiers) & set(KINDS)
