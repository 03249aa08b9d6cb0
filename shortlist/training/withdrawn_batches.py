"""Versions that were trained with a batch of collected rows, which may be withdrawn later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shortlist.data.collected import CollectedRows
from shortlist.tracking.registry import ModelRegistry

_COLLECTED: Final = "collected"
"""Tag of a version: the collected batches that its run read."""


def collected_tags(collected: str) -> dict[str, str]:
    """Return the tag of a version whose run read some batches; none for a spec that collects nothing.

    Args:
        collected: The text of `CollectedRows`; may be empty.
    """
    return {_COLLECTED: collected} if collected else {}


def versions_with_batch(registry: ModelRegistry, number: int) -> list[int]:
    """Return the versions that were trained with a batch, or that continue such a version, in order."""
    trained: list[int] = []
    for version, tags in sorted(registry.tags_by_version().items()):
        if _holds(tags, number) or tags.get("continued_from.version", "") in map(str, trained):
            trained.append(version)
    return trained


def _holds(tags: Mapping[str, str], number: int) -> bool:
    rows = CollectedRows.parse(tags.get(_COLLECTED, ""))
    return rows is not None and rows.holds(number)
