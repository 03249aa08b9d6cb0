"""Metadata of Kubeflow artefacts, written so that every backend hands back the values that were written.

Kubeflow's backend stores texts and numbers as they are, but returns a dict as `{"struct": {...}}`, a list as
`{"list": [...]}` and a bool as 0 or 1, and refuses null (kubeflow/pipelines, backend/src/v2/metadata/converter.go);
kfp.local returns all of them unchanged. Texts and numbers are therefore stored as they are, and every other value as
JSON text behind a prefix.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, Protocol, TypeVar

_JSON_PREFIX: Final = "json:"
_REQUIRED: Final = object()


class ArtefactMetadata(Protocol):
    """Anything with the metadata of a Kubeflow artefact."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Values by key."""
        ...


class PipelineArtefact(ArtefactMetadata, Protocol):
    """A file or folder that a pipeline hands to a step, with its metadata."""

    @property
    def path(self) -> str:
        """Path of the file or folder."""
        ...


Artefact = TypeVar("Artefact", bound=ArtefactMetadata)


def write_metadata(artefact: ArtefactMetadata, **values: Any) -> None:
    """Add values to an artefact's metadata, for `read_metadata`.

    Args:
        artefact: An output of a step.
        values: Texts, numbers, or whatever JSON can represent.
    """
    artefact.metadata.update({name: _encode(value) for name, value in values.items()})


def read_metadata(artefact: ArtefactMetadata, name: str, default: Any = _REQUIRED) -> Any:
    """Return the value that `write_metadata` wrote under a name.

    Args:
        artefact: An input of a step.
        name: Key of the value.
        default: Returned where the artefact has no such key.

    Raises:
        KeyError: The artefact has no such key, and no default was given.

    >>> from types import SimpleNamespace
    >>> artefact = SimpleNamespace(metadata={})
    >>> write_metadata(artefact, rows=3, step={"name": "train"})
    >>> artefact.metadata
    {'rows': 3, 'step': 'json:{"name": "train"}'}
    >>> read_metadata(artefact, "step"), read_metadata(artefact, "members", ())
    ({'name': 'train'}, ())
    """
    if name not in artefact.metadata and default is not _REQUIRED:
        return default
    value = artefact.metadata[name]
    if isinstance(value, str) and value.startswith(_JSON_PREFIX):
        return json.loads(value.removeprefix(_JSON_PREFIX))
    return value


def artefacts_by_model(artefacts: Iterable[Artefact], role: str = "") -> dict[str, Artefact]:
    """Return artefacts by the name of their model.

    Args:
        artefacts: Artefacts with the metadata `model` and `role`.
        role: Role of the models to return; empty: every role.
    """
    return {
        read_metadata(artefact, "model"): artefact
        for artefact in artefacts
        if not role or read_metadata(artefact, "role") == role
    }


def _encode(value: Any) -> str | int | float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_text = isinstance(value, str) and not value.startswith(_JSON_PREFIX)
    return value if is_number or is_text else _JSON_PREFIX + json.dumps(value)
