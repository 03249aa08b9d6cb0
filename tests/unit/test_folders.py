"""No file and no folder of the product imports another that imports it, however long the way round."""

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
    return [(one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one)]


def cycle(imports: Iterable[tuple[str, str]]) -> list[str]:
    """Return a way round in imports; empty where there is none."""
    sorter = TopologicalSorter[str]()
    for one, other in imports:
        if one != other:
            sorter.add(one, other)
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def folder(module: str) -> str:
    """Return the folder that a module's file lies in: a package's own file lies in the package."""
    spec = find_spec(module)
    assert spec is not None
    return module if spec.submodule_search_locations is not None else module.rpartition(".")[0]


def test_no_file_is_imported_by_what_it_imports(imports: list[tuple[str, str]]) -> None:
    assert len(imports) > 1_000
    assert cycle(imports) == []


def test_no_folder_is_imported_by_what_it_imports(imports: list[tuple[str, str]]) -> None:
    assert cycle((folder(one), folder(other)) for one, other in imports) == []


def test_a_way_round_is_found() -> None:
    straight = [("a", "b"), ("b", "c"), ("a", "c")]
    assert cycle(straight) == []
    assert set(cycle([*straight, ("c", "a")])) == {"a", "b", "c"}
    assert {folder("models.blend"), folder("models.planning")} == {"models.blend", "models.planning"}
    assert folder("monitoring.monitoring_job") == "monitoring"
