"""The product's files and folders have no import cycles of any length, and no text names a module of a higher layer."""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec

import grimp
import pytest

from tests.code_layers import PACKAGES, named_modules, product_modules, unread_modules, upward_names


@pytest.fixture(scope="module")
def imports() -> list[tuple[str, str]]:
    """Pairs of modules of which the first imports the second, also inside functions and for types alone."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
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


def test_no_text_names_a_module_of_a_higher_layer() -> None:
    upward, names = {}, 0
    for module, path in product_modules().items():
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


def test_a_module_for_tests_alone_is_detected() -> None:
    sources = {
        "shop.a": "from shop import b\nimport shop.c",
        "shop.b": "from .d import read",
        "shop.c": "PROGRAM = 'copied.py'",
        "shop.d": "x = 1",
        "shop.copied": "x = 1",
        "shop.served": "x = 1",
        "shop.program": 'if __name__ == "__main__": ...',
        "shop.alone": "import shop.a",
    }
    assert unread_modules(sources, "args: [-m, shop.served]") == ["shop.alone"]
