"""Which store keeps the records of a part of a spec's life."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Final, Literal

from shortlist.contracts import ShortlistError
from shortlist.storage.records.folder import FolderRecordStore
from shortlist.storage.records.store import RecordStore
from shortlist.storage.storage_config import StorageConfig

Area = Literal["monitoring", "rollouts", "retraining"]
"""Of whom the records are."""
_TOGETHER: Final[frozenset[Area]] = frozenset({"rollouts"})
"""Areas whose records say in their names which spec's they are: specs share the folder."""
RECORD_STORES: Final[dict[str, str]] = {
    "postgresql": "shortlist.storage.records.postgres:open_postgres",
}
"""Who keeps records at the address of a database, by its scheme, as `module:function`; imported when it is needed, for
it loads the database's client. The function is given the address, the cluster, the area and the spec."""


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
        return record_store_at(known.database_uri, known.cluster, area, spec)
    folder = known.below(area).parents[1] / area
    return FolderRecordStore(folder if area in _TOGETHER else folder / spec)


def record_store_at(address: str, cluster: str, area: str, spec: str) -> RecordStore:
    """Return the records of an area of a spec that are kept at the address of a database.

    Args:
        address: `postgresql://user:password@host:port/database`, or one of another scheme in `RECORD_STORES`.
        cluster: Name of the cluster.
        area: Of whom the records are.
        spec: Name of the spec.

    Raises:
        ShortlistError: It is no address, or nobody keeps records at such addresses; the address is not repeated.
    """
    scheme = address.partition("://")[0]
    if scheme not in RECORD_STORES:
        known = ", ".join(f"{each}://..." for each in RECORD_STORES)
        raise ShortlistError(f"runtime.database: no record store is known for this address; wanted {known}")
    store: RecordStore = resolve_name(RECORD_STORES[scheme])(address, cluster, area, spec)
    return store
