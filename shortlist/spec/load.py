"""Load a spec from YAML, and describe its problems."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from shortlist.contracts import ShortlistError, did_you_mean
from shortlist.spec.base import DisagreementError, RegisteredSection, find_problems
from shortlist.spec.data import Data
from shortlist.spec.gates import Gates, gate_column_checks, gate_settings
from shortlist.spec.models import ModelSection, model_sections
from shortlist.spec.spec import Spec
from shortlist.spec.text.changes import apply_change, split_changes
from shortlist.spec.text.yaml_text import YamlError, read_yaml

_MAX_VALUE_LENGTH: Final = 200


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
        suggestion = (
            did_you_mean(path.name, [spec_path.name for spec_path in path.parent.glob("*.yaml")])
            if path.parent.is_dir()
            else ""
        )
        raise SpecError(f"{path}: no such spec{suggestion}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    return parse_spec(text, str(path), changes)


def parse_spec(text: str, origin: str = "spec", changes: Sequence[str] = ()) -> Spec:
    """Return the spec written in YAML (or JSON) text.

    Args:
        text: The document.
        origin: Name of the document in messages.
        changes: See `load_spec`.

    Raises:
        SpecError: It is not valid.
    """
    try:
        raw = read_yaml(text)
    except YamlError as error:
        raise SpecError(f"{origin}: not valid YAML\n  {str(error).replace(chr(10), chr(10) + '  ')}") from None
    if not isinstance(raw, dict):
        document_type = "an empty file" if raw is None else type(raw).__name__
        raise SpecError(
            f"{origin}: a spec is a mapping with the keys {', '.join(Spec.model_fields)} (got {document_type})"
        )
    for change in (split_change for text in changes for split_change in split_changes(text, Spec.model_fields)):
        try:
            apply_change(raw, change)
        except ValueError as error:
            raise SpecError(f"'{change}': {error}") from None
    try:
        return Spec.model_validate(raw)
    except ValidationError as error:
        problems = [*error.errors(), *_problems_without_unknown_keys(raw, error.errors())]
        described = [line for problem in problems for line in _describe_problems(problem)]
        lines = list(dict.fromkeys([*described, *_find_gate_problems(raw, error.errors())]))
        raise SpecError(f"{origin}: {len(lines)} problem(s)\n" + "\n".join(f"  {line}" for line in lines)) from None


def canonical_json(section: BaseModel) -> str:
    """Return a section as canonical JSON: equal declarations give equal bytes."""
    return json.dumps(section.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))


def digest(section: BaseModel) -> str:
    """Return the first 16 hex digits of the SHA-256 of a section's canonical JSON."""
    return hashlib.sha256(canonical_json(section).encode()).hexdigest()[:16]


def _problems_without_unknown_keys(raw: Mapping[str, Any], problems: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Return the problems between sections, which are looked for only once each section is valid by itself.

    Args:
        raw: The spec.
        problems: Those of its sections; where any of them is not about an unknown key, nothing more can be said.
    """
    if any(problem["type"] != "extra_forbidden" for problem in problems):
        return []
    spec_document = copy.deepcopy(dict(raw))
    for problem in problems:
        *section_path, key = problem["loc"]
        section: Any = spec_document
        for part in section_path:
            if not isinstance(section, Mapping) or part in section:  # pydantic inserts the kinds of sections
                section = section[part]
        section.pop(key, None)
    try:
        Spec.model_validate(spec_document)
    except ValidationError as error:
        return error.errors()
    return []


def _find_gate_problems(raw: Mapping[str, Any], problems: Sequence[ErrorDetails]) -> Sequence[str]:
    """Return the problems of slices and queries with the columns, which need only sound `data` and their own keys.

    Args:
        raw: The spec.
        problems: Those of its sections.
    """
    locations, gates = [problem["loc"] for problem in problems], raw.get("gates")
    if not all(locations) or any(location[0] == "data" for location in locations) or not isinstance(gates, Mapping):
        return ()
    faulty_keys = {location[1:3] for location in locations if location[0] == "gates"}
    faulty_keys |= {key_path[:1] for key_path in faulty_keys if key_path[:1] != ("queries",)}
    sound = {key: value for key, value in gates.items() if (key,) not in faulty_keys}
    if isinstance(sound.get("queries"), Mapping):
        queries = sound["queries"].items()
        sound["queries"] = {name: query for name, query in queries if ("queries", name) not in faulty_keys}
    try:
        return find_problems(gate_column_checks(Gates.model_validate(sound), Data.model_validate(raw["data"])))
    except ValidationError:
        return ()


def _describe_problems(problem: ErrorDetails) -> Sequence[str]:
    """Return a line per problem: one, or those of all checks of the spec's sections that failed."""
    error = problem.get("ctx", {}).get("error")
    return error.messages if isinstance(error, DisagreementError) else (_describe_problem(problem),)


def _describe_problem(problem: ErrorDetails) -> str:
    key_path = ".".join(str(part) for part in _location_in_yaml(problem["loc"])) or "spec"
    value = problem["input"]
    got_value = "" if isinstance(value, Mapping | BaseModel | list) else f" (got {_format_value(value)})"
    match problem["type"]:
        case "extra_forbidden":
            suggestion = did_you_mean(str(problem["loc"][-1]), _allowed_keys(problem["loc"]))
            text = f"unknown key{suggestion or _suggest_section(problem['loc'])}{got_value}"
        case "missing":
            text = "this key is required"
        case "union_tag_invalid" | "union_tag_not_found":
            text = _describe_unknown_kind(problem)
        case "literal_error":
            allowed_values = re.findall(r"'([^']*)'", str(problem["ctx"]["expected"]))
            text = f"{problem['msg']}{did_you_mean(str(value), allowed_values)}{got_value}"
        case "string_pattern_mismatch" if problem["loc"][-1] == "[key]":
            text = f"wanted a name of at most 31 characters, a-z, 0-9 and _, a letter first{got_value}"
        case _:
            text = f"{problem['msg'].removeprefix('Value error, ')}{got_value}"
    return f"{key_path}: {text}"


def _location_in_yaml(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return an error's location without the kind that pydantic inserts after a model's name, or a slice's number."""
    if location[:1] == ("models",) and len(location) > 2:
        return (*location[:2], *location[3:])
    return (*location[:3], *location[4:]) if location[:2] == ("gates", "slices") else location


def _describe_unknown_kind(problem: ErrorDetails) -> str:
    is_model = problem["loc"][:1] == ("models",)
    kinds = list(model_sections()) if is_model else [kind for kind in map(_kind_of, _models_at(problem["loc"])) if kind]
    quoted_kinds = ", ".join(f"'{kind}'" for kind in kinds)
    if problem["type"] == "union_tag_not_found":
        name = str(problem["loc"][-1])
        hint = f"; its name says kind: {name}" if is_model and name in kinds else ""
        return f"`kind` is missing; wanted one of {quoted_kinds}{hint}"
    unknown_kind = str(problem["ctx"]["tag"])
    return f"kind '{unknown_kind}' is not one of {quoted_kinds}{did_you_mean(unknown_kind, kinds)}"


def _format_value(value: object) -> str:
    """Return a value for a message, cut after 200 characters."""
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}..."


def _allowed_keys(location: tuple[int | str, ...]) -> list[str]:
    """Return the keys that are allowed in place of an unknown one."""
    if location[:2] == ("gates", "custom"):
        return list(gate_settings()[str(location[2])].model_fields)
    return [field.alias or name for model in _models_at(location[:-1]) for name, field in model.model_fields.items()]


def _suggest_section(location: tuple[int | str, ...]) -> str:
    """Return the sections of a spec that have a key which stands at its top, as the end of a sentence."""
    if len(location) != 1:
        return ""
    sections = [name for name in Spec.model_fields if location[0] in _allowed_keys((name, location[0]))]
    return f"; did you mean {' or '.join(f'{section}.{location[0]}' for section in sections)}?" if sections else ""


def _models_at(location: tuple[int | str, ...]) -> list[type[BaseModel]]:
    """Return the section classes that are allowed at a location of a spec."""
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
    if isinstance(annotation, RegisteredSection):
        return list(annotation.kinds.values())
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    parts = annotation if isinstance(annotation, tuple) else get_args(annotation)
    return [model for part in parts for model in _models_in(part)]
