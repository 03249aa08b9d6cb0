"""What every section of a spec has in common."""

from __future__ import annotations

import ast
import inspect
import re
from itertools import pairwise
from textwrap import dedent
from typing import Annotated, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


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
                fields[name].setdefault("description", text)
        return made


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
    numbers = range(int(match["first"]), int(match["last"]) + 1)
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
