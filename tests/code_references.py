"""References of docstrings and pages: what stands in back-ticks, or after `Raises:`, exists."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import re
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.code_names import PRODUCT, ROOT, python_files

DESCRIBED = (*PRODUCT, "benchmarks")
"""Folders whose docstrings are checked."""
CODE = (*DESCRIBED, "requirements")
"""Folders whose identifiers and texts are known."""
_WORDED = ("*.yaml", "*.yml", "*.json", "*.toml", "Makefile", "*.Dockerfile", "*.j2", "*.sh", "*.txt", ".ci/run")
_TOKEN = re.compile(r"``?([^`\n]+)``?")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_LITERALS = (
    re.compile(r"^([-+±<>=≤≥]*\d[\d_.,:/xe%+-]*\s?\w{0,4}|[\"'].*[\"']|[^\w]+)$"),
    re.compile(r"^(python|shortlist|pg_restore|kubectl|sysctl|apt-get|pip|uv|docker|curl)\s"),
    re.compile(r"\b(AND|OR|NOT|IS NULL|SELECT)\b|%[dmYHMS]"),
    re.compile(r"\w \*\* \w|\w \+ \w|\w = \w|\) / \w|\w\.\.\w"),
)
"""Numbers and texts, shell, SQL and formats of times, formulas and ranges."""


class Reference(NamedTuple):
    """Something that a text names."""

    path: str
    line: int
    text: str


@functools.cache
def known_words() -> frozenset[str]:
    """Return every identifier of the code and every word of its texts, its YAML, its Makefile and its tables."""
    words: set[str] = set(dir(builtins))
    for path in python_files(CODE):
        tree = ast.parse(path.read_text())
        descriptions = {id(node) for node in _docstring_nodes(tree)}
        words.add(path.stem)
        words.update(path.relative_to(ROOT).parts)
        for node in ast.walk(tree):
            words.update(_node_words(node, descriptions))
    for path in _text_files(*_WORDED):
        words.update(_IDENTIFIER.findall(path.read_text(errors="replace")))
        words.update(re.findall(r"[\w.-]+", path.read_text(errors="replace")))
    return frozenset(words)


def _node_words(node: ast.AST, descriptions: set[int]) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in descriptions:
        yield from _IDENTIFIER.findall(node.value)
        yield from re.findall(r"[\w./:-]+", node.value)
        return
    for field in ("id", "attr", "arg", "name", "asname", "module"):
        value = getattr(node, field, None)
        if isinstance(value, str):
            yield value
            yield from value.split(".")


def _docstring_nodes(tree: ast.Module) -> Iterator[ast.Constant]:
    """Give the texts that only describe: expressions that are a text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def _text_files(*patterns: str) -> list[Path]:
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", *patterns]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / path for path in listing if (ROOT / path).is_file() and "results" not in path]


@functools.cache
def _imports(name: str) -> bool:
    """Return whether a dotted name is a symbol of an installed package."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            with warnings.catch_warnings(action="ignore"):  # what a library says while it is imported
                value = importlib.import_module(".".join(parts[:length]))
        except Exception:  # noqa: S112  (whatever an import of a library raises, it is no such module)
            continue
        return all((value := getattr(value, part, None)) is not None for part in parts[length:])
    return False


def exists(text: str, near: Path) -> bool:
    """Return whether a back-ticked text names something that exists.

    That is a symbol, a key of the spec, an option, a metric, a column, an environment variable, a file, a command, or a
    literal (number, text, formula, SQL, shell).

    Args:
        text: What stands between the back-ticks.
        near: The file that says it: paths may be relative to its folder.
    """
    text = text.strip().rstrip(".,;:")
    if not text or any(literal.search(text) for literal in _LITERALS):
        return True
    if text.startswith("make "):
        return text.split()[1] in known_words()
    if text.startswith("{") and ": " in text:  # an example in YAML: its values are the example's
        return all(_is_known(key) for key in re.findall(r"[{,] ?(\w+): ", text))
    if re.search(r"[ ({*<]", text):
        words = _IDENTIFIER.findall(re.sub(r"[\"'].*?[\"']|<[^>]*>", "", text))
        return all(len(word) < 3 or word.isupper() or _is_known(word) for word in words) or _is_sentence(text)
    return _names_symbol(re.sub(r"^([A-Z_]+)=.*", r"\1", text), near)


def _names_symbol(text: str, near: Path) -> bool:
    if "/" in text or text.startswith("."):
        return text in known_words() or _is_path(text, near)
    bare = re.sub(r"(\(.*\)|\[[^\].]*\]|=.*|:.*)$", "", text.replace("[]", "")).lstrip("-$@~").strip("'\"")
    if not bare or _is_known(bare) or text in known_words():
        return True
    return all(not part or part.isdigit() or _is_known(part) for part in re.split(r"[.-]", bare)) or _imports(bare)


def _is_known(word: str) -> bool:
    """Return whether the code has a word, whole or as one of its prefixes and a word: `history_` and `tags`."""
    words = known_words()
    cuts = [match.end() for match in re.finditer("_", word)]
    return word in words or any(word[:cut] in words and word[cut:] in words for cut in cuts if cut > 1)


def _is_sentence(text: str) -> bool:
    """Return whether a text is a line of words, not code."""
    return not re.search(r"[()=\[\]{}*]|\w\.\w", text)


def _is_path(text: str, near: Path) -> bool:
    pattern = re.sub(r"<[^>]+>|\{[^}]+\}|\.\.\.", "*", text.split(" ", 1)[0].rstrip("/")).partition("#")[0]
    if "://" in text or pattern.startswith(("~", "/", "s3:", "runs", "build", ".venv")):
        return True
    for folder in (ROOT, near.parent, ROOT / "shortlist", ROOT / "docs", ROOT / "tests"):
        try:
            if next(folder.glob(pattern.lstrip("./") if not pattern.startswith("..") else pattern), None) is not None:
                return True
        except (ValueError, NotImplementedError):
            continue
    if pattern.endswith((".py", ".md")):
        return False
    parts = [part for name in pattern.split("/") for part in re.split(r"[.-]", name)]
    return all(not part or "*" in part or part.isdigit() or _is_known(part) for part in parts)


def docstring_references(path: Path) -> Iterator[Reference]:
    """Give what the descriptions of a module name in back-ticks or after `Raises:`, but does not exist."""
    tree = ast.parse(path.read_text())
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    for node in _docstring_nodes(tree):
        for number, line in enumerate(str(node.value).splitlines()):
            for token in _TOKEN.findall(line):
                if not exists(token, path):
                    yield Reference(name, node.lineno + number, token)
        for match in re.finditer(r"^\s*Raises:\n((?:[ \t]+.*\n?)+)", str(node.value), re.MULTILINE):
            lines = match[1].splitlines()
            margin = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
            for line in lines:
                entry = re.match(rf"^[ \t]{{{margin}}}([\w.]+):", line)
                if entry and entry[1] not in known_classes() and not _imports(entry[1]):
                    yield Reference(name, node.lineno, f"Raises: {entry[1]}")


@functools.cache
def known_classes() -> frozenset[str]:
    """Return the classes of the code and the built-in exceptions."""
    classes = {name for name in dir(builtins) if name[0].isupper()}
    for path in python_files(CODE):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                classes.add(node.name)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                classes.update(alias.asname or alias.name for alias in node.names)
    return frozenset(classes)


def page_references(path: Path) -> Iterator[Reference]:
    """Give what a page names in back-ticks, outside of its blocks, but does not exist.

    Names that a page's own examples declare, and columns that begin with such a name, exist there.
    """
    text = path.read_text()
    examples = set(re.findall(r"\w+", " ".join(re.findall(r"(?ms)^ *```.*?^ *```", text))))
    inside = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            for token in _TOKEN.findall(line):
                is_example = token in examples or any(
                    token.startswith(f"{name}_") for name in examples if len(name) > 4
                )
                if not is_example and not exists(token, path):
                    yield Reference(str(path.relative_to(ROOT)), number, token)


def pages() -> list[Path]:
    """Return the pages that are checked; decision records and the list of changes may name what was deleted."""
    return [path for path in _text_files("*.md") if "docs/adr" not in str(path) and path.name != "CHANGELOG.md"]
