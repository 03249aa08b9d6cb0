"""Which store keeps the records of a part of a spec's life."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import ClassVar, Final, Literal

from shortlist.contracts import ShortlistError
from shortlist.spec.runtime import Database, Variable
from shortlist.storage.records.folder import FolderRecordStore
from shortlist.storage.records.store import RecordStore
from shortlist.storage.storage_config import StorageConfig
from shortlist.system.registry import Registry

Area = Literal["monitoring", "rollouts", "retraining"]
"""Part of the product that the records belong to."""
_TOGETHER: Final[frozenset[Area]] = frozenset({"rollouts"})
"""Areas whose records say in their names which spec's they are: specs share the folder."""


class FileDatabase(Database):
    """Registry, monitoring store and rollouts in files."""

    kind: Literal["files"] = "files"
    """In the folder of runs, under file locks: for one machine."""


class PostgresDatabase(Database):
    """Registry, monitoring store and rollouts in PostgreSQL."""

    opened_by: ClassVar[Mapping[str, str]] = {"postgresql": "shortlist.storage.records.postgres:open_postgres"}
    keeps_feast_registry: ClassVar[bool] = True

    kind: Literal["postgres"]
    """Feast's registry and Shortlist's own records, shared by many machines."""
    uri_variable: Variable = "SHORTLIST_DATABASE"
    """Environment variable that holds `postgresql://user:password@host:port/database`."""

    @property
    def address_variable(self) -> str:
        """The environment variable with the address."""
        return self.uri_variable


RECORD_STORES: Final = Registry[type[Database]]("record_stores", {"files": FileDatabase, "postgres": PostgresDatabase})
"""Every record store by the name that a spec gives it; one is added by a line here and a file beside this one."""


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
    folder = known.path_in_folder(area).parents[1] / area
    return FolderRecordStore(folder if area in _TOGETHER else folder / spec)


def record_store_at(address: str, cluster: str, area: str, spec: str) -> RecordStore:
    """Return the records of an area of a spec that are kept at the address of a database.

    Args:
        address: `postgresql://user:password@host:port/database`, or one of another record store.
        cluster: Name of the cluster.
        area: Of whom the records are.
        spec: Name of the spec.

    Raises:
        ShortlistError: It is no address, or nobody keeps records at such addresses; the address is not repeated.
    """
    scheme = address.partition("://")[0]
    store: RecordStore = resolve_name(_kind_at(address).opened_by[scheme])(address, cluster, area, spec)
    return store


def keeps_feast_registry(address: str) -> bool:
    """Return whether Feast's registry is kept at the address of a database too.

    Raises:
        ShortlistError: It is no address, or nobody keeps records at such addresses.
    """
    return _kind_at(address).keeps_feast_registry


def _kind_at(address: str) -> type[Database]:
    scheme = address.partition("://")[0]
    for kinds in (RECORD_STORES, RECORD_STORES.complete()):  # without asking installed packages where it can be
        for kind in kinds.values():
            if scheme in kind.opened_by:
                return kind
    known = ", ".join(f"{each}://..." for kind in RECORD_STORES.values() for each in kind.opened_by)
    raise ShortlistError(f"runtime.database: no record store is known for this address; wanted {known}")
