"""Layers of the code: which modules a source names or imports, and from which layer."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("shortlist", "components", "pipelines", "models", "monitoring")
"""The product's packages, each in a layer of the first import contract."""
_MODULE_NAME = re.compile(rf"({'|'.join(PACKAGES)})(\.\w+)+(:\w+)?")


def product_modules() -> dict[str, Path]:
    """Return the file of each module of the product, by the module's name."""
    return {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"): path
        for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    }


def imported_modules(module: str, tree: ast.Module, modules: Container[str]) -> set[str]:
    """Return which of some modules a module imports, also inside of functions and for types alone."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = [*module.split(".")[: -node.level], node.module or ""] if node.level else [node.module or ""]
            origin = ".".join(package).rstrip(".")
            members = {f"{origin}.{alias.name}" for alias in node.names}
            names |= {member if member in modules else origin for member in members}
    return {name for name in names if name in modules and name != module}


def unread_modules(sources: Mapping[str, str], deployed: str) -> list[str]:
    """Return the modules that no other module imports or names, and that no deployed text names: for tests alone.

    Packages, programs (`__main__`) and empty modules are left out; files that are copied are named by their file name.
    """
    trees = {module: ast.parse(source) for module, source in sources.items()}
    imported = {name for module, tree in trees.items() for name in imported_modules(module, tree, sources)}
    names = Counter(re.findall(r"[\w.]+", f"{' '.join(sources.values())} {deployed}"))
    packages = {module.rpartition(".")[0] for module in sources}
    return [
        module
        for module, tree in trees.items()
        if tree.body and module not in imported | packages and '"__main__"' not in sources[module]
        if not names[module] and not names[f"{module.rpartition('.')[2]}.py"]
    ]


@cache
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
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _MODULE_NAME.fullmatch(node.value):
            module = node.value.partition(":")[0]
            if (ROOT / module.replace(".", "/")).is_dir() or (ROOT / f"{module.replace('.', '/')}.py").is_file():
                yield module


def upward_names(module: str, source: str) -> list[str]:
    """Return the modules of higher layers that texts of a module name."""
    return [name for name in named_modules(source) if layer_of(name) < layer_of(module)]
