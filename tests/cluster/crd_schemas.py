"""The strict JSON Schemas of custom resources that ship with the tests (`schemas/README.md`)."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parent / "schemas"


def has_schema(api_version: str, kind: str) -> bool:
    """Whether the schema of a kind is here."""
    return _file(api_version, kind).is_file()


@cache
def validator(api_version: str, kind: str) -> Draft202012Validator:
    """Return what checks objects of a kind.

    Args:
        api_version: As manifests have it, e.g. `serving.kserve.io/v1beta1`.
        kind: E.g. `InferenceService`.
    """
    return Draft202012Validator(json.loads(gzip.decompress(_file(api_version, kind).read_bytes())))


def problems(body: dict[str, Any]) -> list[str]:
    """Return what the schema of an object's kind says against it."""
    errors = validator(body["apiVersion"], body["kind"]).iter_errors(body)
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in errors]


def _file(api_version: str, kind: str) -> Path:
    return FOLDER / f"{api_version.replace('/', '_')}_{kind}.json.gz"
