"""Reading a spec, and saying what is wrong with one."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from shortlist.contracts import ShortlistError, did_you_mean
from shortlist.spec.base import OneOf
from shortlist.spec.changes import apply_change, split_changes
from shortlist.spec.models import ModelSection, model_sections
from shortlist.spec.spec import Spec
from shortlist.spec.yaml_text import YamlError, read_yaml

_MOST_SHOWN: Final = 200


class SpecError(ShortlistError):
    """The spec is not valid; one line per problem."""


def load_spec(path: Path, changes: Sequence[str] = ()) -> Spec:
    """Return the spec in a YAML file.

    Args:
        path: The file.
        changes: Values to use instead of the file's, each `key.of.section=value` or several with spaces between them.

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
        raw = read_yaml(text)
    except YamlError as error:
        raise SpecError(f"{origin}: not valid YAML\n  {str(error).replace(chr(10), chr(10) + '  ')}") from None
    if not isinstance(raw, dict):
        got = "an empty file" if raw is None else type(raw).__name__
        raise SpecError(f"{origin}: a spec is a mapping with the keys {', '.join(Spec.model_fields)} (got {got})")
    for change in (one for text in changes for one in split_changes(text, Spec.model_fields)):
        try:
            apply_change(raw, change)
        except ValueError as error:
            raise SpecError(f"'{change}': {error}") from None
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


def _describe(problem: ErrorDetails) -> str:
    place = ".".join(str(part) for part in _written_at(problem["loc"])) or "spec"
    value = problem["input"]
    got = "" if isinstance(value, Mapping | BaseModel | list) else f" (got {_shown(value)})"
    match problem["type"]:
        case "extra_forbidden":
            near = did_you_mean(str(problem["loc"][-1]), _keys_beside(problem["loc"]))
            text = f"unknown key{near}{got}"
        case "missing":
            text = "this key is required"
        case "union_tag_invalid" | "union_tag_not_found":
            text = _unknown_kind(problem)
        case "literal_error":
            known = re.findall(r"'([^']*)'", str(problem["ctx"]["expected"]))
            text = f"{problem['msg']}{did_you_mean(str(value), known)}{got}"
        case "string_pattern_mismatch" if problem["loc"][-1] == "[key]":
            text = f"wanted a name of at most 31 characters, a-z, 0-9 and _, a letter first{got}"
        case _:
            text = f"{problem['msg'].removeprefix('Value error, ')}{got}"
    return f"{place}: {text}"


def _written_at(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return a place as the user wrote it: pydantic adds the kind behind a model's name, and that a key is wrong."""
    if location[:1] == ("models",) and len(location) > 2:
        return (*location[:2], *location[3:])
    return location


def _unknown_kind(problem: ErrorDetails) -> str:
    of_model = problem["loc"][:1] == ("models",)
    kinds = list(model_sections()) if of_model else [kind for kind in map(_kind_of, _models_at(problem["loc"])) if kind]
    known = ", ".join(f"'{kind}'" for kind in kinds)
    if problem["type"] == "union_tag_not_found":
        name = str(problem["loc"][-1])
        likely = f"; its name says kind: {name}" if of_model and name in kinds else ""
        return f"`kind` is missing; wanted one of {known}{likely}"
    got = str(problem["ctx"]["tag"])
    return f"kind '{got}' is not one of {known}{did_you_mean(got, kinds)}"


def _shown(value: object) -> str:
    """Return a value as messages show it, the first 200 characters."""
    shown = repr(value)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."


def _keys_beside(location: tuple[int | str, ...]) -> list[str]:
    """Every key that could stand where the unknown one stands."""
    return [field.alias or name for model in _models_at(location[:-1]) for name, field in model.model_fields.items()]


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
        field = owner.model_fields[part]
        return _models_in((field.annotation, *field.metadata))
    if owner is ModelSection:
        return [section for kind, section in model_sections().items() if kind == part]
    return [owner] if _kind_of(owner) == part else []


def _kind_of(model: type[BaseModel]) -> str | None:
    kind = model.model_fields.get("kind")
    return str(get_args(kind.annotation)[0]) if kind is not None and get_args(kind.annotation) else None


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, OneOf):
        return list(annotation.kinds.values())
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    parts = annotation if isinstance(annotation, tuple) else get_args(annotation)
    return [model for part in parts for model in _models_in(part)]
