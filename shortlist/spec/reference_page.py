"""The page with every key of a spec, written from the sections themselves; kinds of other packages are in it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any, Final

from shortlist.spec.spec import Spec

Schema = dict[str, Any]

_WIDTH: Final = 120
_HEAD: Final = """# Every key of a spec

The sections with all keys, their types, bounds and defaults; [the spec](spec.md) is the introduction. `[]` stands for
an element of a list, `NAME` for a name of your own. `shortlist schema --markdown` writes this page; a kind that a
package registers is in what it prints there.
"""
_BOUNDS: Final = {
    "minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below",
}  # fmt: skip


def reference_page() -> str:
    """Return the page as Markdown."""
    return "\n".join([_HEAD, *_Sections(Spec.model_json_schema()).lines()])


class _Sections:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._pending = [("", "", schema)]
        """Path, kind and schema of the sections that are not written yet."""
        self._path_by_definition: dict[str, str] = {}

    def lines(self) -> Iterator[str]:
        """Yield the lines of all sections, each section after the one that names it."""
        while self._pending:
            path, kind, section = self._pending.pop(0)
            later_sections, self._pending = self._pending, []
            yield f"## `{path or 'spec'}`{f', kind `{kind}`' if kind else ''}\n"
            yield from _wrap(section.get("description", ""), "")
            yield ""
            for name, value in section.get("properties", {}).items():
                if not (kind and value.get("const") == kind):
                    yield from self._key_lines(f"{path}.{name}".lstrip("."), name, value)
            yield ""
            self._pending += later_sections

    def _key_lines(self, path: str, name: str, value: Schema) -> Iterator[str]:
        default = f"; default `{json.dumps(value['default'])}`" if _has_plain_default(value) else ""
        description = value.get("description", "").replace("\n", " ")
        yield from _wrap(f"- `{name}` ({self._describe(path, value)}{default}): {description}".rstrip(": "), "  ")

    def _describe(self, path: str, value: Schema) -> str:
        """Return the type of a value in words; sections in it are written later."""
        if "$ref" in value:
            return self._refer(path, "", value["$ref"])
        if "discriminator" in value:
            discriminator = value["discriminator"]
            kinds = [self._refer(path, kind, reference) for kind, reference in discriminator["mapping"].items()]
            return f"by `{discriminator['propertyName']}`: {', '.join(kinds)}"
        if "anyOf" in value or "oneOf" in value:
            kinds = [self._describe(path, kind) for kind in value.get("anyOf") or value["oneOf"]]
            return " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))
        if value.get("type") == "array" and "items" in value:
            return f"list of {self._describe(f'{path}[]', value['items'])}"
        value_schemas = [*value.get("patternProperties", {}).values(), value.get("additionalProperties")]
        if value.get("type") == "object" and isinstance(value_schemas[0], dict):
            return f"by name: {self._describe(f'{path}.NAME', value_schemas[0])}"
        return _describe_scalar(value)

    def _refer(self, path: str, kind: str, reference: str) -> str:
        definition = reference.rpartition("/")[2]
        written_path = self._path_by_definition.setdefault(definition, path)
        if written_path == path:
            section = path, kind, self._schema["$defs"][definition]
            if section not in self._pending:
                self._pending.append(section)
        if kind:
            return f"`{kind}`"
        return "section" if written_path == path else f"section, see `{written_path}`"


def _describe_scalar(value: Schema) -> str:
    if "enum" in value or "const" in value:
        return " or ".join(f"`{json.dumps(choice)}`" for choice in value.get("enum", [value.get("const")]))
    bounds = [f"{words} {value[bound]:g}" for bound, words in _BOUNDS.items() if bound in value]
    return " ".join([str(value.get("type", "any value")), " and ".join(bounds)]).strip()


def _has_plain_default(value: Schema) -> bool:
    return "default" in value and not isinstance(value["default"], dict)


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
