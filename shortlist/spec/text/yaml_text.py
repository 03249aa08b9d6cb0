"""The subset of YAML for specs: mappings with text keys, lists, texts, finite numbers, booleans and null."""

from __future__ import annotations

import math
from typing import Any, Final, cast

import yaml

_MAX_DEPTH: Final = 50
"""Levels of nesting; a spec has eight."""
_MAX_NODES: Final = 100_000
"""Most values of a document; values repeated by aliases count each time."""
_INTEGER_LIMIT: Final = 2**63
_TAGS: Final = frozenset(f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null"))


class YamlError(ValueError):
    """The text is not YAML, or not in the subset for specs; says what and where."""


def read_yaml(text: str) -> Any:
    """Return the value of a YAML document; None of an empty one.

    Dates are returned as texts. Any text gives a value or a `YamlError`.

    Raises:
        YamlError: It is not YAML, or has a key twice, a key that is no text, a tag, too many levels or values, an
            integer beyond 64 bits, a number that is not finite, or a text that is not valid Unicode.

    >>> read_yaml("{start: 2026-02-30, days: 3}")
    {'start': '2026-02-30', 'days': 3}
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _check_size(node)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise YamlError(str(error)) from None


class _Loader(yaml.SafeLoader):
    """A SafeLoader that refuses tags, merges, repeated keys and unstorable values, and reads dates as texts."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, Any]]] = {  # noqa: RUF012 - as PyYAML declares it
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _TAGS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuse deep nesting before its nodes are composed, which would overflow the stack."""
        if self._depth > _MAX_DEPTH:
            assert parent is not None
            raise _problem(f"more than {_MAX_DEPTH} levels of nesting", parent)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag not in _TAGS:
            raise _problem(f"tag '{node.tag}' is not allowed; write a plain value", node)
        try:
            value = super().construct_object(node, deep)
        except ValueError:  # `!!int x`, or more digits than Python reads
            raise _problem(f"'{_excerpt(node.value)}' is not a value of its type", node) from None
        if isinstance(value, str):
            _check_text(value, node)
        if isinstance(value, int) and not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
            raise _problem("integers have at most 64 bits", node)
        if isinstance(value, float) and not math.isfinite(value):
            raise _problem(f"numbers are finite (got {_excerpt(node.value)})", node)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _problem(f"a key must be text (got {_excerpt(repr(key))}); put it in quotes", key_node)
            if key in keys:
                raise _problem(f"key '{_excerpt(key)}' is given twice", key_node)
            keys.add(key)
        return cast(dict[Any, Any], super().construct_mapping(node, deep))


def _check_size(root: yaml.Node) -> None:
    """Refuse a document that is infinite, exponentially large or too deep because of aliases."""
    size_by_node: dict[int, tuple[int, int] | None] = {}

    def measure(node: yaml.Node) -> tuple[int, int]:
        """Return the number of values and of levels of a node; anchors precede aliases, which bounds the recursion."""
        if id(node) in size_by_node:
            size_and_levels = size_by_node[id(node)]
            if size_and_levels is None:
                raise _problem("a value that contains itself", node)
            return size_and_levels
        size_by_node[id(node)] = None
        values = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        parts = [] if isinstance(node, yaml.ScalarNode) else [measure(part) for part in values]
        size, levels = 1 + sum(size for size, _ in parts), 1 + max((levels for _, levels in parts), default=0)
        if size > _MAX_NODES or levels > _MAX_DEPTH:
            raise _problem(f"more than {_MAX_NODES:,} values or {_MAX_DEPTH} levels of nesting", node)
        size_by_node[id(node)] = size, levels
        return size, levels

    measure(root)


def _check_text(value: str, node: yaml.Node) -> None:
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise _problem("a text with a NUL or half a surrogate pair, which is not valid Unicode", node)


def _excerpt(text: object) -> str:
    """Return the beginning of a text, in printable characters."""
    excerpt = str(text)
    excerpt = excerpt if len(excerpt) <= 40 else f"{excerpt[:40]}..."
    return excerpt.encode("utf-8", "backslashreplace").decode()


def _problem(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
