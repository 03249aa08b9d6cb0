"""Random sections of a spec, drawn from its JSON Schema: every section, every kind and every key, new ones too."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any, Final

from shortlist.spec.spec import Spec

_OPTIONAL: Final = 0.25
"""Share of the keys with a default that are written."""
_LONGEST: Final = 3
"""Items of a list, or names of a mapping, that nothing says more about."""
_TEXTS: Final = ("1m", "1h", "1d", "7d", "0 3 * * *", "{key}_one", "{key}_two", "one", "two", "*", "*_one", "score")
_NAMES: Final = ("one", "two", "three")
_NUMBERS: Final = (0, 1, 2, 3, 5, 10, 100, 1_000, 100_000, 0.01, 0.1, 0.5, 0.9, 1.5)
_ANY: Final = (None, 0, 1, -1, 0.5, "", "one", "2026-01-05", True, [], {})


class Grammar:
    """Draws sections that have the form of the schema; what several sections must agree on is left to chance."""

    def __init__(self, draw: random.Random) -> None:
        schema = Spec.model_json_schema()
        self._definitions: dict[str, Any] = schema["$defs"]
        self._sections: dict[str, Any] = {
            name: section_schema
            for name, section_schema in schema["properties"].items()
            if name not in {"version", "name"}
        }
        self._draw = draw

    @property
    def sections(self) -> list[str]:
        """Names of all that may be drawn."""
        return list(self._sections)

    def section(self, name: str, texts: list[str]) -> Any:
        """Return a section.

        Args:
            name: Of `sections`.
            texts: Of the spec that it will be part of: a text is mostly the name of a column or of a model.
        """
        # A model's texts name features; a name that is no feature's makes all of the spec invalid.
        return self._value(self._sections[name], ["*", *_NAMES] if name == "models" else [*texts, *_TEXTS])

    def _value(self, schema: dict[str, Any], texts: list[str]) -> Any:
        if "$ref" in schema:
            return self._value(self._definitions[schema["$ref"].rpartition("/")[2]], texts)
        if "const" in schema:
            return schema["const"]
        for choice in ("enum", "oneOf", "anyOf"):
            if choice in schema:
                alternative = self._draw.choice(schema[choice])
                return alternative if choice == "enum" else self._value(alternative, texts)
        makers = {"object": self._object, "array": self._items, "string": self._text}
        if schema.get("type") in makers:
            return makers[schema["type"]](schema, texts)
        return self._plain(schema)

    def _plain(self, schema: dict[str, Any]) -> Any:
        match schema.get("type"):
            case "integer" | "number":
                return self._number(schema)
            case "boolean":
                return self._draw.random() < 0.5
            case "null":
                return None
        return self._draw.choice(_ANY)

    def _text(self, schema: dict[str, Any], texts: list[str]) -> str:
        fitting = [text for text in texts if re.search(schema.get("pattern", ""), text)]
        return self._draw.choice(fitting or texts)

    def _object(self, schema: dict[str, Any], texts: list[str]) -> dict[str, Any]:
        return dict(self._entries(schema, texts))

    def _entries(self, schema: dict[str, Any], texts: list[str]) -> Iterator[tuple[str, Any]]:
        required = schema.get("required", ())
        for name, property_schema in schema.get("properties", {}).items():
            if name in required or self._draw.random() < _OPTIONAL:
                yield name, self._value(property_schema, texts)
        free = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")]
        for property_schema in free:
            if isinstance(property_schema, dict):
                for name in self._draw.sample(_NAMES, self._draw.randint(1, len(_NAMES))):
                    yield name, self._value(property_schema, texts)

    def _items(self, schema: dict[str, Any], texts: list[str]) -> list[Any]:
        if "prefixItems" in schema:
            return [self._value(item_schema, texts) for item_schema in schema["prefixItems"]]
        least = schema.get("minItems", 0)
        count = self._draw.randint(least, max(least, min(_LONGEST, schema.get("maxItems", _LONGEST))))
        return [self._value(schema.get("items", {}), texts) for _ in range(count)]

    def _number(self, schema: dict[str, Any]) -> float:
        low, high = (schema.get(name, schema.get(f"exclusive{name.title()}")) for name in ("minimum", "maximum"))
        at_ends = [bound for bound in (low, high) if bound is not None]
        number: float = self._draw.choice([*_NUMBERS, *at_ends])
        inside = number if high is None else min(number, high)
        inside = inside if low is None else max(inside, low)
        return int(inside) if schema["type"] == "integer" else inside
