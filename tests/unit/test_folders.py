"""The product's files and folders have no import cycles of any length, and no text names a module of a higher layer."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import grimp
import pytest

PRODUCT = ("shortlist", "components", "pipelines", "models", "monitoring")
ROOT = Path(__file__).parents[2]
MODULE_NAME = re.compile(rf"({'|'.join(PRODUCT)})(\.\w+)+(:\w+)?")


@pytest.fixture(scope="module")
def imports() -> list[tuple[str, str]]:
    """Pairs of modules of which the first imports the second, also inside functions and for types alone."""
    graph = grimp.build_graph(*PRODUCT, cache_dir=None)
    return [
        (importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    ]


def find_cycle(imports: Iterable[tuple[str, str]]) -> list[str]:
    """Return an import cycle; empty where there is none."""
    sorter = TopologicalSorter[str]()
    for importer, imported in imports:
        if importer != imported:
            sorter.add(importer, imported)
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def folder(module: str) -> str:
    """Return the package of a module's file; for a package, the package itself."""
    spec = find_spec(module)
    assert spec is not None
    return module if spec.submodule_search_locations is not None else module.rpartition(".")[0]


def test_files_have_no_import_cycle(imports: list[tuple[str, str]]) -> None:
    assert len(imports) > 1_000
    assert find_cycle(imports) == []


def test_folders_have_no_import_cycle(imports: list[tuple[str, str]]) -> None:
    assert find_cycle((folder(importer), folder(imported)) for importer, imported in imports) == []


def test_a_cycle_is_detected() -> None:
    straight = [("a", "b"), ("b", "c"), ("a", "c")]
    assert find_cycle(straight) == []
    assert set(find_cycle([*straight, ("c", "a")])) == {"a", "b", "c"}
    assert {folder("models.blend"), folder("shortlist.planning")} == {"models.blend", "shortlist.planning"}
    assert folder("monitoring.monitoring_job") == "monitoring"


def layers() -> list[set[str]]:
    """Return the packages of each layer, the highest first, as the first import contract declares them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [set(re.split(r" [|:] ", layer)) for layer in contracts[0]["layers"]]


def layer_of(module: str) -> int:
    """Return the position of a module's layer, 0 for the highest."""
    parts = module.split(".")
    package = ".".join(parts[:2]) if parts[0] == "shortlist" else parts[0]
    (position,) = (position for position, packages in enumerate(layers()) if package in packages)
    return position


def named_modules(source: str) -> Iterator[str]:
    """Yield the modules that texts of a source name, as `package.module` or `package.module:attribute`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE_NAME.fullmatch(node.value):
            module = node.value.partition(":")[0]
            if (ROOT / module.replace(".", "/")).is_dir() or (ROOT / f"{module.replace('.', '/')}.py").is_file():
                yield module


def upward_names(module: str, source: str) -> list[str]:
    """Return the modules of higher layers that texts of a module name."""
    return [name for name in named_modules(source) if layer_of(name) < layer_of(module)]


def test_no_text_names_a_module_of_a_higher_layer() -> None:
    upward, names = {}, 0
    for path in sorted(path for package in PRODUCT for path in (ROOT / package).rglob("*.py")):
        module = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        if module != "shortlist":  # above all of its folders
            names += len(list(named_modules(path.read_text())))
            upward[module] = upward_names(module, path.read_text())
    assert names > 40
    assert {module: found for module, found in upward.items() if found} == {}


def test_a_name_of_a_higher_layer_is_detected() -> None:
    source = 'REGISTRY = "shortlist.slates.filters.rules:FILTERS"'
    assert upward_names("shortlist.spec.filters", source) == ["shortlist.slates.filters.rules"]
    assert upward_names("shortlist.deployment.fleets", source) == []
    assert upward_names("shortlist.slates.retrieval.sources.sequence", 'TRAIN = "models.sequence.train:train"')
