"""What modules of models and training import: few other modules; and of models, the rest of the project no kind."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MOST_IMPORTS = 20


@pytest.mark.parametrize("folder", ["models", "shortlist/training"])
def test_no_module_imports_more_than_twenty_modules(folder: str) -> None:
    counts = {path: len(imported_modules(path)) for path in (ROOT / folder).rglob("*.py")}
    assert len(counts) > 15
    assert {path: count for path, count in counts.items() if count > MOST_IMPORTS} == {}


def test_the_project_reaches_kinds_and_networks_through_the_registry() -> None:
    kinds_and_networks = {path.parent.name for path in (ROOT / "models").glob("*/__init__.py")} - {"planning"}
    assert {"embedding", "blend"} <= kinds_and_networks
    direct_imports = {
        f"{path.relative_to(ROOT)}: {module}"
        for folder in ("shortlist", "monitoring", "components", "pipelines")
        for path in (ROOT / folder).rglob("*.py")
        for module in all_imported_modules(path)
        if module.partition(".")[0] == "models" and module.split(".")[1] in kinds_and_networks
    }
    assert direct_imports == set()


def all_imported_modules(path: Path) -> set[str]:
    """Return the modules that a module imports anywhere."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    return {f"{node.module}.{alias.name}" for node in nodes if node.module for alias in node.names}


def imported_modules(path: Path) -> set[str]:
    """Return the modules outside the standard library that a module imports when it is loaded."""
    modules: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules.add(node.module)
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return {name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names}
