"""YAML as specs use it: mappings with text keys, lists, texts, finite numbers, booleans and null; nothing else."""

from __future__ import annotations

import math
from typing import Any, Final, cast

import yaml

_DEEPEST: Final = 50
"""Levels of nesting; a spec has eight."""
_MOST_NODES: Final = 100_000
"""Values of a document, those that aliases repeat counted each time."""
_LARGEST: Final = 2**63
_TAGS: Final = frozenset(f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null"))


class YamlError(ValueError):
    """The text is not YAML, or holds what no spec can; says what and where."""


def read_yaml(text: str) -> Any:
    """Return the value of a YAML document; None of an empty one.

    Dates are texts: whoever wants a date reads it. Any text gives a value or a `YamlError`.

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
    """A SafeLoader without dates, tags, merges, keys given twice, or values that nothing downstream can hold."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, Any]]] = {  # noqa: RUF012 - as PyYAML declares it
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _TAGS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuse deep nesting before its nodes are made, which would overflow the stack."""
        if self._depth > _DEEPEST:
            assert parent is not None
            raise _problem(f"more than {_DEEPEST} levels of nesting", parent)
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
            raise _problem(f"'{_short(node.value)}' is not a value of its type", node) from None
        if isinstance(value, str):
            _check_text(value, node)
        if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            raise _problem("integers have at most 64 bits", node)
        if isinstance(value, float) and not math.isfinite(value):
            raise _problem(f"numbers are finite (got {_short(node.value)})", node)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _problem(f"a key must be text (got {_short(repr(key))}); put it in quotes", key_node)
            if key in seen:
                raise _problem(f"key '{_short(key)}' is given twice", key_node)
            seen.add(key)
        return cast(dict[Any, Any], super().construct_mapping(node, deep))


def _check_size(root: yaml.Node) -> None:
    """Refuse a document that aliases make endless, exponentially large or deep."""
    known: dict[int, tuple[int, int] | None] = {}

    def measure(node: yaml.Node) -> tuple[int, int]:
        """Return the values and the levels of a node; recursion is as deep as the text, for anchors come first."""
        if id(node) in known:
            found = known[id(node)]
            if found is None:
                raise _problem("a value that contains itself", node)
            return found
        known[id(node)] = None
        values = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        parts = [] if isinstance(node, yaml.ScalarNode) else [measure(part) for part in values]
        size, levels = 1 + sum(size for size, _ in parts), 1 + max((levels for _, levels in parts), default=0)
        if size > _MOST_NODES or levels > _DEEPEST:
            raise _problem(f"more than {_MOST_NODES:,} values or {_DEEPEST} levels of nesting", node)
        known[id(node)] = size, levels
        return size, levels

    measure(root)


def _check_text(value: str, node: yaml.Node) -> None:
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise _problem("a text with a NUL or half a surrogate pair, which is not valid Unicode", node)


def _short(text: object) -> str:
    """Return the beginning of a text, in characters that can be shown."""
    shown = str(text)
    shown = shown if len(shown) <= 40 else f"{shown[:40]}..."
    return shown.encode("utf-8", "backslashreplace").decode()


def _problem(what: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, what, node.start_mark)
