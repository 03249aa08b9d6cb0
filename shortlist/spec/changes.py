"""Single values of a spec, changed from outside: `--set key.of.section=value`, `make run SET="..."`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from shortlist.contracts import did_you_mean
from shortlist.spec.yaml_text import YamlError, read_yaml

APPEND: Final = "+"
"""In place of an element's position: behind the last one."""
_MOST_NAMED: Final = 20


def split_changes(text: str, sections: Collection[str]) -> list[str]:
    """Return the changes that stand in one text, separated by spaces.

    Spaces inside quotes and brackets separate nothing, nor do those that no key of a section follows.

    Args:
        text: As it stands behind `SET=`.
        sections: The first words of keys.

    >>> split_changes('models.trees.features=["*_rate", price] data.clock.format="%d/%m/%Y %H:%M"', ["models", "data"])
    ['models.trees.features=["*_rate", price]', 'data.clock.format="%d/%m/%Y %H:%M"']
    """
    begins, quote, depth = [0], "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and text[place - 1 : place] in ("=", " ", "[", "{", ",", ":"):
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter.isspace() and depth <= 0 and _is_key(text[place + 1 :], sections):
            begins.append(place + 1)
    parts = (text[begin:end].strip() for begin, end in zip(begins, [*begins[1:], None], strict=True))
    return [part for part in parts if part] or [text]


def apply_change(raw: dict[str, Any], change: str) -> None:
    """Put the value of `a.b.c=value`, read as YAML, at its place.

    An element of a list is named by its position from 0, by its `name`, or, to append one, by `+`; `features.NAME` is
    short for `features.columns.NAME`.

    Raises:
        ValueError: There is no such place, or the value is not YAML.
    """
    place, equals, text = change.partition("=")
    parts = place.strip().split(".")
    if not equals or not all(parts):
        raise ValueError("wanted key.of.section=value, e.g. gates.min_auc=0.6")
    try:
        value = read_yaml(text)
    except YamlError:
        raise ValueError(f"'{text}' is not a YAML value; put text with spaces and colons in quotes") from None
    at: Any = raw
    for number, part in enumerate(parts[:-1]):
        at = _inner(at, part, ".".join(parts[:number]) or "the spec", parts[number + 1])
    _put(at, parts[-1], value, ".".join(parts[:-1]))


def _is_key(text: str, sections: Collection[str]) -> bool:
    key, equals, _ = text.lstrip().partition("=")
    return bool(equals) and key.split(".")[0] in sections and not any(letter.isspace() for letter in key)


def _inner(at: Any, part: str, where: str, following: str) -> Any:
    if isinstance(at, list):
        return at[_position(at, part, where)]
    if not isinstance(at, dict):
        raise ValueError(f"'{where.rpartition('.')[2]}' is no section, so it has no key '{part}'")
    if where == "features" and part not in at and isinstance(at.get("columns"), list):
        return at["columns"][_position(at["columns"], part, where)]
    if at.get(part) is None:
        at[part] = [] if following == APPEND else {}
    return at[part]


def _put(at: Any, key: str, value: Any, where: str) -> None:
    if where == "features" and isinstance(at, dict) and isinstance(at.get("columns"), list) and key.isdecimal():
        at = at["columns"]
    if isinstance(at, list):
        if key == APPEND:
            at.append(value)
        else:
            at[_position(at, key, where)] = value
    elif isinstance(at, dict):
        at[key] = value
    else:
        raise ValueError(f"'{where.rpartition('.')[2]}' is no section, so it has no key '{key}'")


def _position(elements: list[Any], part: str, where: str) -> int:
    """Return which element of a list a part of a key names."""
    if part.isdecimal() and int(part) < len(elements):
        return int(part)
    named = {name: place for place, element in enumerate(elements) for name in _names(element)}
    if part in named:
        return named[part]
    names = ", ".join(list(named)[:_MOST_NAMED])
    raise ValueError(
        f"'{where}' is a list without an element '{part}'{did_you_mean(part, named)}; wanted a position from 0 to"
        f" {len(elements) - 1}" + (f", or one of the names {names}" if names else "")
    )


def _names(element: Any) -> Iterator[str]:
    """Give the names by which an element of a list is known: its own, or that of the one column it is made of."""
    if isinstance(element, str):
        yield element
    elif isinstance(element, dict):
        own = element.get("name", element.get("each"))
        if isinstance(own, str):
            yield own
            if isinstance(element.get("suffix"), str):
                yield f"{own}_{element['suffix']}"
