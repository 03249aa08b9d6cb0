"""Names of the code: how many say nothing, which classes share one."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PRODUCT = ("pipelines", "components", "feature_repo", "models", "monitoring", "shortlist", "requirements/installer")
MEASURED = (*PRODUCT, "benchmarks")
VAGUE_WORDS = frozenset(
    """
    one ones found own known unknown wanted said told there given made asked left seen kept held other others every some
    more most many few fewer this that these those what which who whose way ways begun done gone heard taken tried such
    another both either each all_of none_of any_of it its they them their theirs ours mine here where when why how
    happened became come came went put got has had have is was were be been being do does did so thus then than
    again still yet already always never ever also too only just even about above below after before over under
    between within without against along across around wish wishes word words thing things stuff something nothing
    anything everything somebody nobody anybody everybody meant means mean_it wished ought shall should would could
    can may might must need needs needed used using looked called named_one listed drawn chosen picked shown hidden
    astray lesson lessons spoken written_ kept_ earlier later newer older first_ last_ rest remaining_ now_ lately
    """.split()  # noqa: SIM905  (a list of so many words is read more easily like this)
)
"""Pronouns, participles and adverbs: as a name they say nothing, and no search finds them."""
FILLER_WORDS = frozenset(
    {
        "result",
        "results",
        "entry",
        "entries",
        "element",
        "elements",
        "info",
        "infos",
        "obj",
        "objs",
        "data",
        "tmp",
        "ret",
        "res",
    }
)
"""Nouns that fit everything."""
FIELD_TERMS = frozenset({"seen", "shown", "where"})
"""Keys of the spec and columns of a schema that are the field's terms: as attributes of a class they count as names."""


class Name(NamedTuple):
    """A name, and where it is assigned or defined."""

    path: str
    line: int
    text: str


class NameFigures(NamedTuple):
    """How a set of modules is named."""

    assigned: int
    """Targets of assignments, loops and comprehensions, and parameters."""
    vague: list[Name]
    """Those of them that say nothing."""
    definitions: int
    """Functions, classes and modules."""
    vague_definitions: list[Name]
    """Those of them whose last word says nothing."""
    filler: list[Name]
    """Assigned names that are a noun that fits everything."""

    @property
    def vague_percent(self) -> float:
        """Share of vague names among the assigned ones."""
        return 100 * len(self.vague) / max(self.assigned, 1)

    @property
    def vague_definitions_percent(self) -> float:
        """Share of functions, classes and modules with a vague last word."""
        return 100 * len(self.vague_definitions) / max(self.definitions, 1)


def python_files(folders: tuple[str, ...]) -> list[Path]:
    """Return the Python files of some folders that git knows or would add."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", *(f"{folder}/*.py" for folder in folders)]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [ROOT / path for path in listing if (ROOT / path).exists()]


def read_figures(paths: list[Path]) -> NameFigures:
    """Return how some modules are named."""
    assigned = definitions = 0
    vague, vague_definitions, filler = [], [], []
    for path in paths:
        tree = ast.parse(path.read_text())
        name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
        for text, line, is_attribute in _assigned_names(tree):
            assigned += 1
            word = text.strip("_").lower()
            if word in VAGUE_WORDS and not (is_attribute and word in FIELD_TERMS):
                vague.append(Name(name, line, text))
            if word in FILLER_WORDS:
                filler.append(Name(name, line, text))
        for text, line in _defined_names(tree, path):
            definitions += 1
            if last_word(text) in VAGUE_WORDS:
                vague_definitions.append(Name(name, line, text))
    return NameFigures(assigned, vague, definitions, vague_definitions, filler)


def last_word(name: str) -> str:
    """Return the last word of a name in snake_case or CamelCase, in lower case.

    >>> last_word("items_shown"), last_word("NamedOne")
    ('shown', 'one')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).strip("_").lower().rsplit("_", 1)[-1]


def shared_class_names(paths: list[Path]) -> dict[str, list[str]]:
    """Return the public classes that are defined more than once, with their modules."""
    modules: dict[str, list[str]] = {}
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    return {name: places for name, places in modules.items() if len(places) > 1}


def attribute_docs_without_subject(paths: list[Path]) -> list[Name]:
    """Return the descriptions of attributes that begin with "Of", so that nothing says of what they are the value."""
    return [
        Name(str(path.relative_to(ROOT)), node.lineno, node.value.value.split("\n")[0])
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if node.value.value.startswith("Of ")
    ]


def _assigned_names(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """Give each assigned name, its line, and whether it is an attribute of a class."""
    fields = {
        id(statement.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno, id(node) in fields
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno, False
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno, False


def _defined_names(tree: ast.Module, path: Path) -> Iterator[tuple[str, int]]:
    yield path.parent.name if path.name == "__init__.py" else path.stem, 1
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node.lineno
