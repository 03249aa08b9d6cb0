"""What every section of a spec has in common."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Section(BaseModel):
    """A part of a spec: frozen, with no unknown keys, its fields described where they stand."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)


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
