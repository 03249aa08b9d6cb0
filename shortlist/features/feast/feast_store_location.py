"""Location of a spec's Feast store: its registry, notes, and the features that servers read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from shortlist.contracts import ShortlistError
from shortlist.storage.artefacts import IntegrityError, folder_digest
from shortlist.storage.objects import ObjectStore, open_object_store
from shortlist.storage.records.folder import FolderRecordStore
from shortlist.storage.records.opening import keeps_feast_registry, record_store_at
from shortlist.storage.records.store import RecordStore
from shortlist.storage.storage_config import StorageConfig

SERVING: Final = "serving.json"
"""File with the served views, the log behind them, and the moment up to which they are filled."""
REGISTRY: Final = "registry.db"

SECOND_SLOT: Final = "second"
"""The second slot of the online store: features alternate between two when they are replaced as a whole."""

_LOCK: Final = "lock"
_AREA: Final = "features"


@dataclass(frozen=True)
class FeastStoreLocation:
    """A spec's Feast store; get one from `feast_store_location` or `spec_feast_store_location`."""

    folder: Path | None
    """Folder of SQLite's files; None where no disk is shared."""
    objects: ObjectStore
    """Store of the announcement and the written keys; a bucket also holds published features and logs."""
    state: RecordStore
    """Store of the lock and of notes."""
    database: str | None = None
    """Address of the database with Feast's registry, a secret; None: the registry is a file in the folder."""
    publishes: bool = False
    """Whether readers are on other machines, so that features and logs must be published for them."""
    slot: str = ""
    """Which of two Feast projects in the online store: empty, or `SECOND_SLOT`."""

    @property
    def served_location(self) -> Self:
        """The location with the slot that servers read.

        Raises:
            IntegrityError: The announcement is not readable.
        """
        return replace(self, slot=(self.read_announcement() or {}).get("slot", ""))

    @property
    def spare_location(self) -> Self:
        """The location with the slot that servers do not read.

        Raises:
            IntegrityError: The announcement is not readable.
        """
        return replace(self, slot="" if self.served_location.slot else SECOND_SLOT)

    @property
    def registry(self) -> str:
        """Address of Feast's registry as SQLAlchemy reads it; it may hold a password."""
        if self.database is None:
            return f"sqlite:///{self.file(REGISTRY)}"
        return "postgresql+psycopg://" + self.database.partition("://")[2]

    def file(self, name: str) -> Path:
        """Return the path of one of SQLite's files.

        Raises:
            ShortlistError: There is no folder.
        """
        if self.folder is None:
            raise ShortlistError(
                "runtime.online_store: `kind: sqlite` is a file, and no disk is shared here; declare `kind: redis`"
            )
        return self.folder.resolve() / name

    @contextmanager
    def write_lock(self) -> Iterator[None]:
        """Hold the lock under which one process at a time writes the spec's store."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        with self.state.lock(_LOCK):
            yield

    @contextmanager
    def registry_lock(self) -> Iterator[None]:
        """Hold the lock under which one process at a time opens a registry whose tables may be missing."""
        lock: Any = nullcontext()
        if self.database is not None:
            from shortlist.storage.records.postgres import open_postgres  # loads the driver

            lock = open_postgres(self.database, "", _AREA, "").lock("registry")
        with lock:
            yield

    def publish(self, folder: Path, kind: str) -> str:
        """Return the path of a folder, or the address of a published copy that never changes.

        Args:
            folder: What to publish.
            kind: `fits` or `logs`.
        """
        if not self.publishes:
            return str(folder.resolve())
        return self.objects.put_folder(folder, f"{kind}/{folder_digest(folder)}")

    def announce(self, announcement: Mapping[str, Any]) -> None:
        """Write the announcement of what servers read; they notice when it changes."""
        self.objects.write(SERVING, (json.dumps(announcement, indent=2) + "\n").encode())

    def read_announcement(self) -> dict[str, Any] | None:
        """Return the last announcement; None when there is none.

        Raises:
            IntegrityError: It is not readable.
        """
        content = self.objects.read(SERVING)
        if content is None:
            return None
        try:
            announcement = json.loads(content)
        except ValueError as error:
            raise IntegrityError(f"{self.objects.url(SERVING)}: not valid JSON ({error}). Run again.") from None
        if not isinstance(announcement, dict):
            raise IntegrityError(
                f"{self.objects.url(SERVING)}: wanted a JSON object, got {type(announcement).__name__}"
            )
        return announcement

    def require_announcement(self) -> dict[str, Any]:
        """Return the last announcement.

        Raises:
            IntegrityError: There is none.
        """
        announcement = self.read_announcement()
        if announcement is None:
            address = self.objects.url(SERVING).removeprefix("file://")
            raise IntegrityError(f"{address}: missing; the step that writes it did not finish. Run again.")
        return announcement


def feast_store_location(store: Path | FeastStoreLocation) -> FeastStoreLocation:
    """Return the location of a store in a folder; a location is returned as it is."""
    if isinstance(store, FeastStoreLocation):
        return store
    return FeastStoreLocation(store, ObjectStore.in_folder(store), FolderRecordStore(store))


def spec_feast_store_location(stores: StorageConfig, spec: str) -> FeastStoreLocation:
    """Return the location of a spec's store; nothing is connected yet.

    Raises:
        ShortlistError: An environment variable with an address is not set, or holds none.
    """
    folder = None if stores.folder is None else stores.folder / "feast" / spec
    if folder is not None and not stores.objects and not stores.database_variable:
        return feast_store_location(folder)
    if stores.objects:
        objects = open_object_store(stores.model_copy(update={"objects": f"{stores.objects}/feast/{spec}"}))
    else:
        objects = ObjectStore.in_folder(stores.path_in_folder("feast") / spec)
    database = stores.database_uri
    if database is None:
        return FeastStoreLocation(
            folder, objects, FolderRecordStore(stores.path_in_folder("feast") / spec), publishes=bool(stores.objects)
        )
    state = record_store_at(database, stores.cluster, _AREA, spec)
    registry = database if keeps_feast_registry(database) else None
    return FeastStoreLocation(folder, objects, state, registry, publishes=bool(stores.objects))
