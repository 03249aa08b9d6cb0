"""Folder of the runs on this machine: MLflow, Feast, the cache, the pages."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict

from shortlist.contracts import ShortlistError
from shortlist.spec.runtime import Runtime, ServerTracking
from shortlist.storage.artefacts import write_text
from shortlist.storage.records.identity import claim
from shortlist.storage.storage_config import StorageConfig

_SPECS: Final = "specs"
"""Folder of the paths of specs that were run, by name."""
_CHAMPIONS: Final = "champions"
"""Folder of the versions of champions, by spec."""


class RunsFolder(BaseModel):
    """The folder given as RUNS."""

    model_config = ConfigDict(frozen=True)

    root: Path

    @classmethod
    def open(cls, root: Path) -> Self:
        """Return a runs folder, which is created when missing."""
        state = cls(root=root.resolve())
        state.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        state.stores.mkdir(mode=0o700, exist_ok=True)  # with MLflow's database, features and models
        with _exclusive_lock(state.stores):  # two concurrent first runs get the same identity
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
        """Folder and identity of the stores, so that results cached for deleted stores are not reused."""
        return f"{self.stores}#{self._epoch.read_text().strip()}"

    def storage_config_for(self, runtime: Runtime) -> StorageConfig:
        """Return the stores of a run here; without the folder where all of them are on servers.

        Raises:
            ShortlistError: A server cannot be reached, or belongs to another cluster.
        """
        runtime.online_store.check_reachable()
        folder_epoch = self._epoch.read_text().strip()
        if not (servers := _server_addresses(runtime)):
            return StorageConfig(folder=self.stores, epoch=folder_epoch)
        folder = None if _keeps_nothing_local(runtime) else self.stores
        remote = runtime.prediction_log == "objects" and folder is not None
        config = StorageConfig(folder=folder, cluster=runtime.cluster.name, log_in_objects=remote, **servers)
        folder_part = folder_epoch if config.folder else ""
        return config.model_copy(update={"epoch": "-".join(filter(None, (folder_part, claim(config))))})

    def storage_parameter(self, runtime: Runtime) -> str:
        """Return `storage_config_for` as the value of the graphs' parameter `stores`."""
        return str(self.storage_config_for(runtime))

    def new_run(self, spec: str) -> Path:
        """Create and return the folder of a new run, named by time and spec."""
        moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        for suffix in ("", *(f"-{number}" for number in range(2, 100))):
            folder = self.root / f"{moment}-{spec}{suffix}"
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700, parents=True)
                return folder
        raise AssertionError("a hundred runs in one second")

    def remember_spec(self, name: str, path: Path) -> None:
        """Remember the path of a spec that was run, so that commands find it by its name."""
        folder = self.stores / _SPECS
        folder.mkdir(exist_ok=True)
        write_text(folder / name, str(path.resolve()))

    @property
    def champions(self) -> dict[str, int]:
        """The champion of each spec after its last run, rollout or promotion here."""
        return {record.name: int(record.read_text()) for record in sorted((self.stores / _CHAMPIONS).glob("*"))}

    def remember_champion(self, spec: str, version: int) -> None:
        """Remember the champion of a spec, for pages of all specs: reading MLflow's registry takes seconds."""
        (self.stores / _CHAMPIONS).mkdir(exist_ok=True)
        write_text(self.stores / _CHAMPIONS / spec, str(version))

    def point_latest_at(self, run: Path) -> None:
        """Make `latest` a link to a run."""
        link = self.root / f"latest.{uuid.uuid4().hex}.partial"
        link.symlink_to(run.name)
        link.replace(self.root / "latest")


def recalled_spec(runs: Path, name: str) -> Path | None:
    """Return the path of the spec of a name that was run last in a runs folder; None where none was."""
    record = runs / "stores" / _SPECS / name
    return Path(record.read_text(encoding="utf-8")) if record.is_file() else None


@contextmanager
def _exclusive_lock(folder: Path) -> Iterator[None]:
    """Hold the exclusive lock of a folder; the operating system releases it when a process dies."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _server_addresses(runtime: Runtime) -> dict[str, str]:
    """Return the fields of `StorageConfig` that name servers; empty where every store is a file."""
    address_by_field = {}
    if runtime.objects.address:
        address_by_field["objects"] = runtime.objects.address
    if isinstance(runtime.tracking, ServerTracking):
        address_by_field["tracking_variable"] = runtime.tracking.uri_variable
    if runtime.database.address_variable:
        address_by_field["database_variable"] = runtime.database.address_variable
    return address_by_field


def _keeps_nothing_local(runtime: Runtime) -> bool:
    """Whether no store is on this machine's disk."""
    features = runtime.online_store.is_shared and runtime.database.keeps_feast_registry
    serving = runtime.prediction_log == "objects" and runtime.target.is_remote
    return features and len(_server_addresses(runtime)) == 3 and serving


def open_runs_folder(runs: Path, runtime: Runtime | None = None) -> RunsFolder:
    """Return the runs folder of earlier runs; a new one where every store of the spec is on a server.

    Args:
        runs: The folder.
        runtime: The spec's section; None for a command that shows this machine's runs.

    Raises:
        ShortlistError: There are no runs yet, and something would be in the folder.
    """
    is_needed = runtime is None or not _keeps_nothing_local(runtime)
    if is_needed and not (runs / "stores").is_dir():
        raise ShortlistError(f"{runs}: no runs yet; make run first")
    return RunsFolder.open(runs)
