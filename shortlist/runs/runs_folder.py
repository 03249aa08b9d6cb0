"""Where runs on this machine keep what outlives them: MLflow, Feast, the cache, the pages."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from shortlist.contracts import ShortlistError
from shortlist.spec.runtime import Runtime, ServerTracking
from shortlist.storage.artefacts import write_text
from shortlist.storage.records.identity import claim
from shortlist.storage.storage_config import StorageConfig


class RunsFolder(BaseModel):
    """The folder given as RUNS and what lies in it."""

    model_config = ConfigDict(frozen=True)

    root: Path

    @classmethod
    def open(cls, root: Path) -> Self:
        """Return the state below a folder, made when missing."""
        state = cls(root=root.resolve())
        state.stores.mkdir(parents=True, exist_ok=True)
        with _alone_in(state.stores):  # two first runs at the same moment get one identity
            if not state._epoch.exists():
                write_text(state._epoch, uuid.uuid4().hex)
        return state

    @property
    def stores(self) -> Path:
        """Folder of MLflow's and Feast's own files."""
        return self.root / "stores"

    @property
    def _epoch(self) -> Path:
        return self.stores / "epoch"

    @property
    def reference(self) -> str:
        """What steps are given: folder and identity, so that results cached for deleted stores are not reused."""
        return f"{self.stores}#{self._epoch.read_text().strip()}"

    def storage_config_for(self, runtime: Runtime) -> StorageConfig:
        """Return the stores that a run here uses; the folder is left out where all of them are on servers.

        Raises:
            ShortlistError: A server cannot be reached, or belongs to another cluster.
        """
        runtime.online_store.check_reachable()
        folder_epoch = self._epoch.read_text().strip()
        if not (servers := _servers(runtime)):
            return StorageConfig(folder=self.stores, epoch=folder_epoch)
        folder = None if _shares_all(runtime) else self.stores
        remote = runtime.prediction_log == "objects" and folder is not None
        found = StorageConfig(folder=folder, cluster=runtime.cluster.name, log_in_objects=remote, **servers)
        own = folder_epoch if found.folder else ""
        return found.model_copy(update={"epoch": "-".join(filter(None, (own, claim(found))))})

    def storage_parameter(self, runtime: Runtime) -> str:
        """Return `stores_for` as the graphs' parameter says it."""
        return str(self.storage_config_for(runtime))

    def new_run(self, spec: str) -> Path:
        """Make and return the folder of a new run, named by time and spec."""
        moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        for suffix in ("", *(f"-{number}" for number in range(2, 100))):
            folder = self.root / f"{moment}-{spec}{suffix}"
            with suppress(FileExistsError):
                folder.mkdir(parents=True)
                return folder
        raise AssertionError("a hundred runs in one second")

    def point_latest_at(self, run: Path) -> None:
        """Make `latest` a link to a run."""
        link = self.root / f"latest.{uuid.uuid4().hex}.partial"
        link.symlink_to(run.name)
        link.replace(self.root / "latest")


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process is in such a block with the same folder; a process that dies leaves it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _servers(runtime: Runtime) -> dict[str, str]:
    """Return what the stores say of servers; nothing where everything is a file."""
    said = {}
    if runtime.objects.address:
        said["objects"] = runtime.objects.address
    if isinstance(runtime.tracking, ServerTracking):
        said["tracking_variable"] = runtime.tracking.uri_variable
    if runtime.database.address_variable:
        said["database_variable"] = runtime.database.address_variable
    return said


def _shares_all(runtime: Runtime) -> bool:
    """Whether nothing that outlives a run is on this machine's disk."""
    features = runtime.online_store.is_shared and runtime.database.keeps_feast_registry
    serving = runtime.prediction_log == "objects" and runtime.target.is_remote
    return features and len(_servers(runtime)) == 3 and serving


def existing(runs: Path) -> RunsFolder:
    """Return the state of runs that were made before.

    Raises:
        ShortlistError: There are none.
    """
    if not (runs / "stores").is_dir():
        raise ShortlistError(f"{runs}: no runs yet; make run first")
    return RunsFolder.open(runs)
