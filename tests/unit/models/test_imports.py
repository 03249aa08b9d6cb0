"""Modules of models and training stay readable from their imports: none knows more than twenty other modules."""

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


def imported_modules(path: Path) -> set[str]:
    """Return the modules outside the standard library that a module imports when it is loaded."""
    modules: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules.add(node.module)
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return {name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names}
