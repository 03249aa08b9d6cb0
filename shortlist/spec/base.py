"""The base class of all sections of a spec, and field types they share."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from itertools import pairwise
from operator import or_
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

from shortlist.system.registry import Registry, resolve_address


class Section(BaseModel):
    """A section of a spec: immutable, without unknown keys, each field described by the docstring below it."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the docstring below each field to the JSON Schema as its description.

        Pydantic's `use_attribute_docstrings` reads the source of every section at import: 0.06 s of processor time in
        every step, though only the JSON Schema needs it.
        """
        json_schema = handler(schema)
        fields = handler.resolve_ref_schema(json_schema)["properties"]
        for section in cls.__mro__[: cls.__mro__.index(Section)]:
            for name, text in _field_docstrings(section).items():
                if name in fields:  # not a class variable
                    fields[name].setdefault("description", text)
        return json_schema


Check = Callable[[], object]
"""Raises a `ValueError` when sections do not agree."""


class DisagreementError(ValueError):
    """Sections of a spec do not agree; a message per problem."""

    def __init__(self, messages: Iterable[str]) -> None:
        self.messages = tuple(messages)
        super().__init__("\n".join(self.messages))


def find_problems(checks: Iterable[Check]) -> tuple[str, ...]:
    """Return the messages of all checks that fail, each once; none of the checks may depend on another one."""
    messages: dict[str, None] = {}
    for check in checks:
        try:
            check()
        except ValueError as problem:
            messages[str(problem)] = None
    return tuple(messages)


@dataclass(frozen=True)
class RegisteredSection:
    """Annotation of a field that holds a section of any registered kind; its key selects the section's class.

    Sections of extensible kinds (features, online stores) are defined in layers above this one, beside their
    implementations. Their registry is therefore given by name, and imported when the first section is validated. Kinds
    that are added to it later, or by an installed package, are accepted at once.

    Attributes:
        registry: Name in `shortlist.ADDRESSES` of a `Registry` of sections, at least two.
        by_name: Whether the name of a kind alone stands for its section with all defaults.
        key: The key that holds the name of the kind.
    """

    registry: str
    by_name: bool = False
    key: str = "kind"

    @property
    def kinds(self) -> Registry[type[Section]]:
        """The registered sections, by kind."""
        return cast(Registry[type[Section]], resolve_address(self.registry))

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        sections = handler(_union_adapter(tuple(self.kinds.complete().values()), self.key).core_schema)
        names = {"enum": list(self.kinds), "type": "string"}
        return {"anyOf": [names, sections]} if self.by_name else sections

    def _validate(self, value: Any) -> Any:
        if self.by_name and isinstance(value, str):
            value = {self.key: value}
        kind = value.get(self.key) if isinstance(value, dict) else None
        kinds = self.kinds if not isinstance(kind, str) or kind in self.kinds else self.kinds.complete()
        return _union_adapter(tuple(kinds.values()), self.key).validate_python(value)


@lru_cache(maxsize=16)
def _union_adapter(kinds: tuple[type[Section], ...], key: str) -> TypeAdapter[Any]:
    union: Any = Annotated[reduce(or_, kinds), Field(discriminator=key)]
    return TypeAdapter(union)


@cache
def _field_docstrings(section: type) -> dict[str, str]:
    """Return the docstring below each field of a class, by the field's name."""
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


_MAX_RANGE_DIGITS = 9
_MAX_RANGE_NAMES = 10_000
_RANGE_PATTERN = re.compile(r"^(?P<head>.*)\{(?P<first>\d+)\.\.(?P<last>\d+)\}(?P<tail>.*)$")


def expand_names(pattern: str) -> list[str]:
    """Return the names that a pattern with one numeric range expands to.

    >>> expand_names("C{1..3}")
    ['C1', 'C2', 'C3']
    >>> expand_names("price")
    ['price']
    """
    match = _RANGE_PATTERN.match(pattern)
    if match is None:
        return [pattern]
    if max(len(match["first"]), len(match["last"])) > _MAX_RANGE_DIGITS:
        raise ValueError(f"the range in '{pattern[:80]}' has numbers of more than {_MAX_RANGE_DIGITS} digits")
    numbers = range(int(match["first"]), int(match["last"]) + 1)
    if len(numbers) > _MAX_RANGE_NAMES:
        raise ValueError(
            f"the range in '{pattern}' stands for {len(numbers):,} names; wanted at most {_MAX_RANGE_NAMES:,}"
        )
    if not numbers:
        raise ValueError(f"the range in '{pattern}' is empty; the smaller number comes first")
    return [f"{match['head']}{number}{match['tail']}" for number in numbers]


def expand_patterns(names: object) -> object:
    """Return names with their ranges expanded, as `expand_names` does; what is no name stays as it is."""
    if isinstance(names, str):
        return tuple(expand_names(names))
    if isinstance(names, list | tuple):
        return tuple(
            name for pattern in names for name in (expand_names(pattern) if isinstance(pattern, str) else [pattern])
        )
    return names


Names = Annotated[tuple[str, ...], BeforeValidator(expand_patterns)]
"""One or several names; `C{1..26}` expands to twenty-six names."""
