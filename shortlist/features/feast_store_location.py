"""Where a spec's Feast store keeps what Feast itself does not: its registry, notes, and what servers read."""

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
from shortlist.storage.objects_folder import FolderObjectStore
from shortlist.storage.records.folder import FolderRecordStore
from shortlist.storage.records.opening import keeps_feast_registry, record_store_at
from shortlist.storage.records.store import RecordStore
from shortlist.storage.storage_config import StorageConfig

SERVING: Final = "serving.json"
"""Names the views that servers read beside the online store, the log behind them, and until when they hold."""
REGISTRY: Final = "registry.db"

SECOND_SLOT: Final = "second"
"""The other of the two places in the online store that features alternate between when they are replaced as a whole."""

_LOCK: Final = "lock"
_AREA: Final = "features"


@dataclass(frozen=True)
class FeastStoreLocation:
    """A spec's Feast store; get one from `place_of` or `place_in`."""

    folder: Path | None
    """Of SQLite's files; None where no disk is shared."""
    objects: ObjectStore
    """Pointer and keys; where it is a bucket, published features and logs too."""
    state: RecordStore
    """Lock and notes."""
    database: str | None = None
    """Address of the database with Feast's registry, a secret; None: the registry is a file in the folder."""
    shares: bool = False
    """Whether readers are on other machines, so that what they read must be published."""
    slot: str = ""
    """Which of two Feast projects in the online store: empty, or `SECOND_SLOT`."""

    @property
    def served(self) -> Self:
        """The same with the slot that servers read.

        Raises:
            IntegrityError: What was announced is not readable.
        """
        return replace(self, slot=(self.announced() or {}).get("slot", ""))

    @property
    def spare(self) -> Self:
        """The same with the slot that servers do not read.

        Raises:
            IntegrityError: What was announced is not readable.
        """
        return replace(self, slot="" if self.served.slot else SECOND_SLOT)

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
    def alone(self) -> Iterator[None]:
        """Let one process at a time write the spec's store."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        with self.state.lock(_LOCK):
            yield

    @contextmanager
    def making_tables(self) -> Iterator[None]:
        """Let one process at a time open a registry whose tables may be missing; specs share a database."""
        lock: Any = nullcontext()
        if self.database is not None:
            from shortlist.storage.records.postgres import open_postgres  # loads the driver

            lock = open_postgres(self.database, "", _AREA, "").lock("registry")
        with lock:
            yield

    def publish(self, folder: Path, kind: str) -> str:
        """Return where readers find a folder: its path, or the address of a copy that never changes.

        Args:
            folder: What to publish.
            kind: `fits` or `logs`.
        """
        if not self.shares:
            return str(folder.resolve())
        return self.objects.put_folder(folder, f"{kind}/{folder_digest(folder)}")

    def announce(self, announced: Mapping[str, Any]) -> None:
        """Write what servers read; they notice when it changes."""
        self.objects.write(SERVING, (json.dumps(announced, indent=2) + "\n").encode())

    def announced(self) -> dict[str, Any] | None:
        """Return what was announced last; None when nothing was.

        Raises:
            IntegrityError: It is not readable.
        """
        content = self.objects.read(SERVING)
        if content is None:
            return None
        try:
            found = json.loads(content)
        except ValueError as error:
            raise IntegrityError(f"{self.objects.url(SERVING)}: not valid JSON ({error}). Run again.") from None
        if not isinstance(found, dict):
            raise IntegrityError(f"{self.objects.url(SERVING)}: wanted a JSON object, got {type(found).__name__}")
        return found

    def expected(self) -> dict[str, Any]:
        """Return what was announced last.

        Raises:
            IntegrityError: Nothing was.
        """
        found = self.announced()
        if found is None:
            where = self.objects.url(SERVING).removeprefix("file://")
            raise IntegrityError(f"{where}: missing; the step that writes it did not finish. Run again.")
        return found


def feast_store_location(store: Path | FeastStoreLocation) -> FeastStoreLocation:
    """Return the place that a folder is; another place stays what it is."""
    if isinstance(store, FeastStoreLocation):
        return store
    return FeastStoreLocation(store, FolderObjectStore(store), FolderRecordStore(store))


def spec_feast_store_location(stores: StorageConfig, spec: str) -> FeastStoreLocation:
    """Return a spec's place among the stores; nothing is connected yet.

    Raises:
        ShortlistError: A variable with an address is not set, or holds none.
    """
    folder = None if stores.folder is None else stores.folder / "feast" / spec
    if folder is not None and not stores.objects and not stores.database_variable:
        return feast_store_location(folder)
    objects: ObjectStore
    if stores.objects:
        objects = open_object_store(stores.model_copy(update={"objects": f"{stores.objects}/feast/{spec}"}))
    else:
        objects = FolderObjectStore(stores.below("feast") / spec)
    database = stores.database_uri
    if database is None:
        return FeastStoreLocation(
            folder, objects, FolderRecordStore(stores.below("feast") / spec), shares=bool(stores.objects)
        )
    state = record_store_at(database, stores.cluster, _AREA, spec)
    registry = database if keeps_feast_registry(database) else None
    return FeastStoreLocation(folder, objects, state, registry, shares=bool(stores.objects))
