"""Which store keeps the records of a part of a spec's life."""

from __future__ import annotations

from typing import Final, Literal

from shortlist.storage.records.folder import FolderRecordStore
from shortlist.storage.records.store import RecordStore
from shortlist.storage.storage_config import StorageConfig

Area = Literal["monitoring", "rollouts", "retraining"]
"""Of whom the records are."""
_TOGETHER: Final[frozenset[Area]] = frozenset({"rollouts"})
"""Areas whose records say in their names which spec's they are: specs share the folder."""


def open_record_store(stores: StorageConfig | str, area: Area, spec: str) -> RecordStore:
    """Return the records of an area of a spec: files beside the folder of the stores, or PostgreSQL where it is named.

    Args:
        stores: What the graph's `stores` parameter says.
        area: Of whom the records are.
        spec: Name of the spec.

    Raises:
        ShortlistError: The stores name neither a folder nor a database, or the database's address is no address.
    """
    known = StorageConfig.parse(stores) if isinstance(stores, str) else stores
    if known.database_uri is not None:
        from shortlist.storage.records.postgres import open_postgres  # late: one machine needs no database client

        return open_postgres(known.database_uri, known.cluster, area, spec)
    folder = known.below(area).parents[1] / area
    return FolderRecordStore(folder if area in _TOGETHER else folder / spec)
