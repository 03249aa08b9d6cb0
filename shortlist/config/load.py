"""Reading a spec, and saying what is wrong with one."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from shortlist.config.spec import Spec
from shortlist.contracts import ShortlistError, did_you_mean


class SpecError(ShortlistError):
    """The spec is not valid; one line per problem."""


def load_spec(path: Path, changes: Sequence[str] = ()) -> Spec:
    """Return the spec in a YAML file.

    Args:
        path: The file.
        changes: Values to use instead of the file's, each `key.of.section=value`.

    Raises:
        SpecError: It cannot be read or is not valid; names file, key, value and the likely intended key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = (
            did_you_mean(path.name, [other.name for other in path.parent.glob("*.yaml")])
            if path.parent.is_dir()
            else ""
        )
        raise SpecError(f"{path}: no such spec{near}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    return parse_spec(text, str(path), changes)


def parse_spec(text: str, origin: str = "spec", changes: Sequence[str] = ()) -> Spec:
    """Return the spec written in YAML (or JSON) text.

    Args:
        text: The document.
        origin: What to call it in messages.
        changes: See `load_spec`.

    Raises:
        SpecError: It is not valid.
    """
    try:
        raw = yaml.load(text, Loader=_UniqueKeys)  # noqa: S506 - a SafeLoader that also refuses a key given twice
    except yaml.YAMLError as error:
        raise SpecError(f"{origin}: not valid YAML\n  {str(error).replace(chr(10), chr(10) + '  ')}") from None
    if not isinstance(raw, dict):
        raise SpecError(
            f"{origin}: a spec is a mapping with the keys {', '.join(Spec.model_fields)} (got {type(raw).__name__})"
        )
    for change in changes:
        _change(raw, change)
    try:
        return Spec.model_validate(raw)
    except ValidationError as error:
        lines = [_describe(problem) for problem in error.errors()]
        raise SpecError(f"{origin}: {len(lines)} problem(s)\n" + "\n".join(f"  {line}" for line in lines)) from None


def canonical_json(section: BaseModel) -> str:
    """Return a section as JSON whose bytes depend on its meaning alone: the same declaration, the same text."""
    return json.dumps(section.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))


def digest(section: BaseModel) -> str:
    """Return the first 16 hex digits of the SHA-256 of a section's canonical JSON."""
    return hashlib.sha256(canonical_json(section).encode()).hexdigest()[:16]


def _change(raw: dict[str, Any], change: str) -> None:
    """Put the value of `a.b.c=value`, read as YAML, at its place."""
    place, equals, value = change.partition("=")
    *sections, key = place.strip().split(".")
    if not equals or not all((*sections, key)):
        raise SpecError(f"'{change}': wanted key.of.section=value, e.g. models.xgboost.max_depth=4")
    at = raw
    for section in sections:
        inner = at.setdefault(section, {})
        if not isinstance(inner, dict):
            raise SpecError(f"'{change}': '{section}' is no section, so it has no key '{key}'")
        at = inner
    try:
        at[key] = yaml.safe_load(value)
    except yaml.YAMLError:
        raise SpecError(f"'{change}': '{value}' is not a YAML value") from None


class _UniqueKeys(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key}' is given twice", key_node.start_mark)
            seen.add(key)
        return cast(dict[Any, Any], super().construct_mapping(node, deep))


def _describe(problem: ErrorDetails) -> str:
    place = ".".join(str(part) for part in problem["loc"]) or "spec"
    value = problem["input"]
    got = "" if isinstance(value, Mapping | BaseModel | list) else f" (got {value!r})"
    if problem["type"] == "extra_forbidden":
        return f"{place}: unknown key{did_you_mean(str(problem['loc'][-1]), _keys_beside(problem['loc']))}{got}"
    if problem["type"] == "missing":
        return f"{place}: this key is required"
    if problem["type"] == "union_tag_invalid":
        return f"{place}: kind '{problem['ctx']['tag']}' is not one of {problem['ctx']['expected_tags']}"
    if problem["type"] == "union_tag_not_found":
        kinds = ", ".join(f"'{kind}'" for kind in map(_kind_of, _models_at(problem["loc"])) if kind)
        return f"{place}: `kind` is missing; wanted one of {kinds}"
    if problem["type"] == "literal_error":
        known = re.findall(r"'([^']*)'", str(problem["ctx"]["expected"]))
        return f"{place}: {problem['msg']}{did_you_mean(str(value), known)}{got}"
    return f"{place}: {problem['msg'].removeprefix('Value error, ')}{got}"


def _keys_beside(location: tuple[int | str, ...]) -> list[str]:
    """Every key that could stand where the unknown one stands."""
    return [name for model in _models_at(location[:-1]) for name in model.model_fields]


def _models_at(location: tuple[int | str, ...]) -> list[type[BaseModel]]:
    """The sections that could stand at a place of a spec."""
    models: list[type[BaseModel]] = [Spec]
    for part in location:
        models = [model for owner in models for model in _models_of(owner, part)] or models
    return models


def _models_of(owner: type[BaseModel], part: int | str) -> list[type[BaseModel]]:
    if not isinstance(part, str):
        return []
    if part in owner.model_fields:
        return _models_in(owner.model_fields[part].annotation)
    return [owner] if _kind_of(owner) == part else []


def _kind_of(model: type[BaseModel]) -> str | None:
    kind = model.model_fields.get("kind")
    return str(get_args(kind.annotation)[0]) if kind is not None and get_args(kind.annotation) else None


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]
