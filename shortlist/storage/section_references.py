"""Sections of a spec in the object store: the steps of a run on a cluster get references instead of the texts.

Kubeflow writes the value of every parameter of a step eight times into the Argo workflow of a run, and Argo limits its
size (`shortlist.kubeflow.workflow_size`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from shortlist.contracts import ShortlistError
from shortlist.storage.artefacts import IntegrityError
from shortlist.storage.objects import ObjectStore, open_object_store
from shortlist.storage.storage_config import StorageConfig

REFERENCE_PREFIX: Final = "section:"
"""Begins a reference; the address of the text follows. A section is JSON and begins with a brace."""
_FOLDER: Final = "sections"
_LONGEST_TEXT: Final = 400
"""Characters; a shorter text is not stored, for its reference would be hardly shorter."""


def store_section(text: str, objects: ObjectStore) -> str:
    """Return the reference of a section, which is stored under its digest; a short section is returned itself.

    Args:
        text: The section as canonical JSON; may be empty.
        objects: Where it is stored.

    Raises:
        ShortlistError: The store is unavailable or refuses.
    """
    if len(text) <= _LONGEST_TEXT:
        return text
    content = text.encode()
    key = f"{_FOLDER}/{hashlib.sha256(content).hexdigest()}.json"
    objects.write(key, content)
    return REFERENCE_PREFIX + objects.url(key)


def read_sections(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a step with the text of each section in place of its reference.

    Raises:
        IntegrityError: A text is not the one that was stored.
        ShortlistError: A text is missing, or the store is unavailable or refuses.
    """
    return {name: _read_section(value) if is_reference(value) else value for name, value in values.items()}


def is_reference(value: Any) -> bool:
    """Return whether the value of a parameter is the reference of a section."""
    return isinstance(value, str) and value.startswith(REFERENCE_PREFIX)


def _read_section(reference: str) -> str:
    address = reference.removeprefix(REFERENCE_PREFIX)
    root, _, name = address.rpartition(f"/{_FOLDER}/")
    content = open_object_store(StorageConfig(objects=root)).read(f"{_FOLDER}/{name}")
    if content is None:
        raise ShortlistError(f"{address}: this section of the spec is missing; run again, which stores it")
    if f"{hashlib.sha256(content).hexdigest()}.json" != name:
        raise IntegrityError(f"{address}: not the section that was stored; delete it and run again")
    return content.decode()
