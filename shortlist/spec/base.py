"""What every section of a spec has in common."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from itertools import pairwise
from operator import or_
from pkgutil import resolve_name
from textwrap import dedent
from typing import Annotated, Any, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from shortlist.system.registry import Registry


class Section(BaseModel):
    """A part of a spec: frozen, with no unknown keys, its fields described where they stand."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Describe every field by the text below it.

        Pydantic's own way, `use_attribute_docstrings`, reads the source of every section when it is imported: 0.06 s of
        processor time in every step, for what only who asks for the schema needs.
        """
        made = handler(schema)
        fields = handler.resolve_ref_schema(made)["properties"]
        for section in cls.__mro__[: cls.__mro__.index(Section)]:
            for name, text in _texts(section).items():
                if name in fields:  # not a class variable
                    fields[name].setdefault("description", text)
        return made


@dataclass(frozen=True)
class OneOf:
    """Marks a field that holds a section of any registered kind, told apart by `kind`.

    Sections of open sets (features, online stores) are defined in layers above this one, each beside what it does. The
    registry that lists them is therefore named, and imported when the first section is read; a kind that is added to it
    later is known at once, and so is one of an installed package.

    Attributes:
        registry: `module:name` of a `Registry` of sections, two at least.
        by_name: Whether the name of a kind alone stands for its section with nothing declared.
    """

    registry: str
    by_name: bool = False

    @property
    def kinds(self) -> Registry[type[Section]]:
        """The registered sections, by kind."""
        return cast(Registry[type[Section]], resolve_name(self.registry))

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validated)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        sections = handler(_union_of(tuple(self.kinds.complete().values())).core_schema)
        names = {"enum": list(self.kinds), "type": "string"}
        return {"anyOf": [names, sections]} if self.by_name else sections

    def _validated(self, value: Any) -> Any:
        if self.by_name and isinstance(value, str):
            value = {"kind": value}
        kind = value.get("kind") if isinstance(value, dict) else None
        kinds = self.kinds if not isinstance(kind, str) or kind in self.kinds else self.kinds.complete()
        return _union_of(tuple(kinds.values())).validate_python(value)


@lru_cache(maxsize=16)
def _union_of(kinds: tuple[type[Section], ...]) -> TypeAdapter[Any]:
    union: Any = Annotated[reduce(or_, kinds), Field(discriminator="kind")]
    return TypeAdapter(union)


@cache
def _texts(section: type) -> dict[str, str]:
    """Return the string that stands below each field of a class, in its source."""
    body = cast(ast.ClassDef, ast.parse(dedent(inspect.getsource(section))).body[0]).body
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


_DIGITS = 9
_MOST_NAMES = 10_000
_RANGE = re.compile(r"^(?P<head>.*)\{(?P<first>\d+)\.\.(?P<last>\d+)\}(?P<tail>.*)$")


def expand_names(pattern: str) -> list[str]:
    """Return the names a pattern with one numeric range stands for.

    >>> expand_names("C{1..3}")
    ['C1', 'C2', 'C3']
    >>> expand_names("price")
    ['price']
    """
    match = _RANGE.match(pattern)
    if match is None:
        return [pattern]
    if max(len(match["first"]), len(match["last"])) > _DIGITS:
        raise ValueError(f"the range in '{pattern[:80]}' has numbers of more than {_DIGITS} digits")
    numbers = range(int(match["first"]), int(match["last"]) + 1)
    if len(numbers) > _MOST_NAMES:
        raise ValueError(f"the range in '{pattern}' stands for {len(numbers):,} names; wanted at most {_MOST_NAMES:,}")
    if not numbers:
        raise ValueError(f"the range in '{pattern}' is empty; the smaller number comes first")
    return [f"{match['head']}{number}{match['tail']}" for number in numbers]


def _expand_all(names: object) -> object:
    if isinstance(names, str):
        return tuple(expand_names(names))
    if isinstance(names, list | tuple):
        return tuple(
            name for pattern in names for name in (expand_names(pattern) if isinstance(pattern, str) else [pattern])
        )
    return names


Names = Annotated[tuple[str, ...], BeforeValidator(_expand_all)]
"""One or several names; `C{1..26}` stands for twenty-six of them."""
