"""What a record may be called, in every store."""

from __future__ import annotations

import re
from typing import Final

MOST_PARTS: Final = 3
_PART: Final = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_NAME: Final = re.compile(rf"{_PART}(/{_PART}){{0,{MOST_PARTS - 1}}}")


def checked(name: str) -> str:
    """Return a name of a record or a lock; it is ours, never a user's.

    >>> checked("decisions/0123.json")
    'decisions/0123.json'
    """
    assert _NAME.fullmatch(name), f"not a record's name: {name!r}"
    return name


def is_name(text: str) -> bool:
    """Whether a record may be called so; a hidden or half-written file may not."""
    return _NAME.fullmatch(text) is not None and not text.endswith(".partial")
