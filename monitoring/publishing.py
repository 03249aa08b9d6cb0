"""Pages about live traffic where people find them: on this disk, or among the objects where no disk is shared."""

from __future__ import annotations

from pathlib import Path

from shortlist.contracts import ShortlistError
from shortlist.storage.objects import open_object_store
from shortlist.storage.storage_config import StorageConfig
from shortlist.tracking.steps import note


def address_of(stores: StorageConfig, name: str, page: str) -> str:
    """Return the address of a spec's page among the objects; empty where it is found on this disk."""
    return "" if stores.folder is not None else open_object_store(stores).url(f"monitoring/{name}/{page}")


def publish(stores: StorageConfig, name: str, folder: Path) -> None:
    """Put a spec's pages among the objects where no disk is shared; what cannot be put is only said.

    Args:
        stores: Where everything is.
        name: Of the spec.
        folder: Of its pages on this machine: those of this look, for the next one is on another.
    """
    if stores.folder is not None:
        return
    try:
        objects = open_object_store(stores)
        for page in sorted(folder.rglob("*.html")):
            objects.put_file(page, f"monitoring/{name}/{page.relative_to(folder).as_posix()}")
    except ShortlistError as problem:  # the decision stands; a page less is no reason to fail
        note(f"Pages stay on this machine: {problem}")
