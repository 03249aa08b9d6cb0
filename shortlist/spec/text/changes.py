"""Single values of a spec, changed from outside: `--set key.of.section=value`, `make run SET="..."`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from shortlist.contracts import did_you_mean
from shortlist.spec.text.yaml_text import YamlError, read_yaml

APPEND: Final = "+"
"""Key part that appends an element to a list."""
_MAX_NAMES_SHOWN: Final = 20


def split_changes(text: str, sections: Collection[str]) -> list[str]:
    """Split one text into its changes, which are separated by spaces.

    A space separates two changes only outside quotes and brackets, and only where a key of a section follows it.

    Args:
        text: The text after `SET=`.
        sections: Names of the spec's sections, with which keys begin.

    >>> split_changes('models.trees.features=["*_rate", price] data.clock.format="%d/%m/%Y %H:%M"', ["models", "data"])
    ['models.trees.features=["*_rate", price]', 'data.clock.format="%d/%m/%Y %H:%M"']
    """
    starts, quote, bracket_depth = [0], "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and text[place - 1 : place] in ("=", " ", "[", "{", ",", ":"):
            quote = letter
        elif letter in "[{":
            bracket_depth += 1
        elif letter in "]}":
            bracket_depth -= 1
        elif letter.isspace() and bracket_depth <= 0 and _starts_with_key(text[place + 1 :], sections):
            starts.append(place + 1)
    changes = (text[begin:end].strip() for begin, end in zip(starts, [*starts[1:], None], strict=True))
    return [part for part in changes if part] or [text]


def apply_change(raw: dict[str, Any], change: str) -> None:
    """Set the key `a.b.c` of a spec to the value of `a.b.c=value`, read as YAML.

    An element of a list is named by its position from 0, by its `name`, or, to append one, by `+`; `features.NAME` is
    short for `features.columns.NAME`.

    Raises:
        ValueError: There is no such key, or the value is not YAML.
    """
    key, equals, text = change.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ValueError("wanted key.of.section=value, e.g. gates.min_auc=0.6")
    try:
        value = read_yaml(text)
    except YamlError:
        raise ValueError(f"'{text}' is not a YAML value; put text with spaces and colons in quotes") from None
    section: Any = raw
    for number, part in enumerate(parts[:-1]):
        section = _child_section(section, part, ".".join(parts[:number]) or "the spec", parts[number + 1])
    _set_value(section, parts[-1], value, ".".join(parts[:-1]))


def _starts_with_key(text: str, sections: Collection[str]) -> bool:
    key, equals, _ = text.lstrip().partition("=")
    return bool(equals) and key.split(".")[0] in sections and not any(letter.isspace() for letter in key)


def _child_section(section: Any, part: str, section_key: str, next_part: str) -> Any:
    if isinstance(section, list):
        return section[_list_position(section, part, section_key)]
    if not isinstance(section, dict):
        raise ValueError(f"'{section_key.rpartition('.')[2]}' is no section, so it has no key '{part}'")
    if section_key == "features" and part not in section and isinstance(section.get("columns"), list):
        return section["columns"][_list_position(section["columns"], part, section_key)]
    if section.get(part) is None:
        section[part] = [] if next_part == APPEND else {}
    return section[part]


def _set_value(section: Any, key: str, value: Any, section_key: str) -> None:
    if (
        section_key == "features"
        and isinstance(section, dict)
        and isinstance(section.get("columns"), list)
        and key.isdecimal()
    ):
        section = section["columns"]
    if isinstance(section, list):
        if key == APPEND:
            section.append(value)
        else:
            section[_list_position(section, key, section_key)] = value
    elif isinstance(section, dict):
        section[key] = value
    else:
        raise ValueError(f"'{section_key.rpartition('.')[2]}' is no section, so it has no key '{key}'")


def _list_position(list_section: list[Any], part: str, section_key: str) -> int:
    """Return the position in a list of the element that a part of a key names."""
    if part.isdecimal() and int(part) < len(list_section):
        return int(part)
    position_by_name = {
        name: position for position, declaration in enumerate(list_section) for name in _declared_names(declaration)
    }
    if part in position_by_name:
        return position_by_name[part]
    names = ", ".join(list(position_by_name)[:_MAX_NAMES_SHOWN])
    raise ValueError(
        f"'{section_key}' is a list without an element '{part}'{did_you_mean(part, position_by_name)}; wanted a"
        f" position from 0 to {len(list_section) - 1}" + (f", or one of the names {names}" if names else "")
    )


def _declared_names(declaration: Any) -> Iterator[str]:
    """Yield the names of a list's element: its own, or the one derived from its only column."""
    if isinstance(declaration, str):
        yield declaration
    elif isinstance(declaration, dict):
        name = declaration.get("name", declaration.get("each"))
        if isinstance(name, str):
            yield name
            if isinstance(declaration.get("suffix"), str):
                yield f"{name}_{declaration['suffix']}"
