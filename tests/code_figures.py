"""Figures of the code, as `make check` prints them: names, references, declarations, layers, sizes."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path

from shortlist.features.declared.feature_kind import FeatureKind
from tests.code_layers import imported_modules, product_modules, unread_modules, upward_names
from tests.code_names import (
    MEASURED,
    PRODUCT,
    ROOT,
    attribute_docs_without_subject,
    python_files,
    read_figures,
    shared_class_names,
)
from tests.code_references import DESCRIBED, docstring_references, page_references, pages

SIZED = ("shortlist", "models", "monitoring", "components", "pipelines", "feature_repo")
"""Folders of the product whose lines and syntax nodes are counted."""
A_COUNT = "disconnected"
"""The count whose declarations are counted, as an example of all counts of a rollout."""


def figures() -> Iterator[tuple[str, str]]:
    """Give each figure with its title."""
    for title, folders in (("product and benchmarks", MEASURED), ("tests", ("tests",))):
        yield from _name_figures(title, python_files(folders))
    yield "public classes that share a name", str(len(shared_class_names(python_files(PRODUCT))))
    yield "attributes described by 'Of ...'", str(len(attribute_docs_without_subject(python_files(PRODUCT))))
    stale = [reference for path in python_files(DESCRIBED) for reference in docstring_references(path)]
    stale += [reference for path in pages() for reference in page_references(path)]
    yield "stale references in docstrings and pages", str(len(stale))
    sources = {module: path.read_text() for module, path in product_modules().items()}
    trees = {module: ast.parse(source) for module, source in sources.items()}
    yield f"classes that declare the count '{A_COUNT}'", str(_declarations(trees.values(), A_COUNT))
    yield "hooks of FeatureKind", str(sum(not name.startswith("_") for name in vars(FeatureKind) if _is_hook(name)))
    yield from _import_figures(sources, trees)
    yield from _size_figures()


def _name_figures(title: str, paths: list[Path]) -> Iterator[tuple[str, str]]:
    names = read_figures(paths)
    frequent = ", ".join(
        f"{name} {count}" for name, count in Counter(map(attrgetter("text"), names.vague)).most_common(8)
    )
    yield (
        f"vague names, {title}",
        f"{len(names.vague)} of {names.assigned}, {names.vague_percent:.2f} % ({frequent or 'none'})",
    )
    yield (
        f"vague functions, classes, modules, {title}",
        f"{len(names.vague_definitions)} of {names.definitions}, {names.vague_definitions_percent:.2f} %",
    )
    yield f"filler names, {title}", str(len(names.filler))


def _declarations(trees: Iterable[ast.Module], field: str) -> int:
    statements = (
        statement
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    )
    return sum(isinstance(statement.target, ast.Name) and statement.target.id == field for statement in statements)


def _is_hook(name: str) -> bool:
    member = inspect.getattr_static(FeatureKind, name)
    return isinstance(member, property | classmethod | staticmethod) or inspect.isfunction(member)


def _import_figures(sources: dict[str, str], trees: dict[str, ast.Module]) -> Iterator[tuple[str, str]]:
    imports = {module: imported_modules(module, tree, sources) for module, tree in trees.items()}
    upward = [name for module in sources if module != "shortlist" for name in upward_names(module, sources[module])]
    yield "texts that name a module of a higher layer", str(len(upward))
    framework = [module for module in sources if module.startswith("shortlist.")]
    of_models = [module for module in framework if any(name.startswith("models") for name in imports[module])]
    yield "modules of the framework that import models", str(len(of_models))
    hub = max(imports, key=lambda module: len(imports[module]))
    yield "most imports of one module", f"{len(imports[hub])} ({hub})"
    unread = unread_modules(sources, "".join(path.read_text() for path in _deployed_files()))
    yield (
        "modules of the product that nothing in it names",
        f"{len(unread)}, {sum(sources[module].count(chr(10)) for module in unread)} lines ({', '.join(unread)})",
    )


def _deployed_files() -> list[Path]:
    return [path for path in sorted((ROOT / "deploy").rglob("*")) if path.suffix in {".yaml", ".Dockerfile", ".sh"}]


def _size_figures() -> Iterator[tuple[str, str]]:
    paths = python_files(SIZED)
    nodes = sum(1 for path in paths for _ in ast.walk(ast.parse(path.read_text())))
    yield "product", f"{len(paths)} modules, {_lines(paths)} lines, {nodes} syntax nodes"
    yield "benchmarks", f"{_lines(python_files(('benchmarks',)))} lines"
    compiled = sorted((ROOT / "pipelines/compiled").glob("*.yaml"))
    yield "compiled graphs", f"{len(compiled)} files, {_lines(compiled)} lines"
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"(?m)^[a-z-]+:.*## ", makefile)
    yield "Makefile", f"{len(targets)} documented targets, {makefile.count(chr(10))} lines"
    yield "decision records", str(len(list((ROOT / "docs/adr").glob("[0-9]*.md"))))
    yield "list of changes", f"{_lines([ROOT / 'CHANGELOG.md'])} lines"


def _lines(paths: list[Path]) -> int:
    return sum(path.read_text().count("\n") for path in paths)


if __name__ == "__main__":
    for name, figure in figures():
        print(f"{name}: {figure}")  # noqa: T201
