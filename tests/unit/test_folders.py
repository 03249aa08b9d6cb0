"""The product's files and folders have no import cycles of any length."""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec

import grimp
import pytest

PRODUCT = ("shortlist", "components", "pipelines", "models", "monitoring")


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
    assert {folder("models.blend"), folder("models.planning")} == {"models.blend", "models.planning"}
    assert folder("monitoring.monitoring_job") == "monitoring"
