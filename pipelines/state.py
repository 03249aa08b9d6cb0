"""Where runs on this machine keep what outlives them: MLflow, Feast, the cache, the pages."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from shortlist.artefacts import write_text
from shortlist.config.runtime import BucketObjects, PostgresDatabase, RedisOnline, Runtime, ServerTracking
from shortlist.contracts import ShortlistError
from shortlist.features.feast_environment import reach_online
from shortlist.identity import claim
from shortlist.stores import Stores


class State(BaseModel):
    """The folder given as RUNS and what lies in it."""

    model_config = ConfigDict(frozen=True)

    root: Path

    @classmethod
    def open(cls, root: Path) -> Self:
        """Return the state below a folder, made when missing."""
        state = cls(root=root.resolve())
        state.stores.mkdir(parents=True, exist_ok=True)
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

    def stores_for(self, runtime: Runtime) -> Stores:
        """Return the stores that a run here uses; the folder is left out where all of them are on servers.

        Raises:
            ShortlistError: A server cannot be reached, or belongs to another cluster.
        """
        reach_online(runtime.online_store)
        folder_epoch = self._epoch.read_text().strip()
        if not (servers := _servers(runtime)):
            return Stores(folder=self.stores, epoch=folder_epoch)
        folder = None if _shares_all(runtime) else self.stores
        remote = runtime.prediction_log == "objects" and folder is not None
        found = Stores(folder=folder, cluster=runtime.cluster.name, log_in_objects=remote, **servers)
        own = folder_epoch if found.folder else ""
        return found.model_copy(update={"epoch": "-".join(filter(None, (own, claim(found))))})

    def reference_for(self, runtime: Runtime) -> str:
        """Return `stores_for` as the graphs' parameter says it."""
        return str(self.stores_for(runtime))

    def new_run(self, spec: str) -> Path:
        """Make and return the folder of a new run, named by time and spec."""
        moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        for suffix in ("", *(f"-{number}" for number in range(2, 100))):
            folder = self.root / f"{moment}-{spec}{suffix}"
            if not folder.exists():
                folder.mkdir(parents=True)
                return folder
        raise AssertionError("a hundred runs in one second")

    def point_latest_at(self, run: Path) -> None:
        """Make `latest` a link to a run."""
        link = self.root / "latest.partial"
        link.unlink(missing_ok=True)
        link.symlink_to(run.name)
        link.replace(self.root / "latest")


def _servers(runtime: Runtime) -> dict[str, str]:
    """Return what the stores say of servers; nothing where everything is a file."""
    said = {}
    if isinstance(runtime.objects, BucketObjects):
        said["objects"] = runtime.objects.url
    if isinstance(runtime.tracking, ServerTracking):
        said["tracking_variable"] = runtime.tracking.uri_variable
    if isinstance(runtime.database, PostgresDatabase):
        said["database_variable"] = runtime.database.uri_variable
    return said


def _shares_all(runtime: Runtime) -> bool:
    """Whether nothing that outlives a run is on this machine's disk."""
    online = isinstance(runtime.online_store, RedisOnline)
    return online and len(_servers(runtime)) == 3 and runtime.prediction_log == "objects" and runtime.target == "kserve"


def existing(runs: Path) -> State:
    """Return the state of runs that were made before.

    Raises:
        ShortlistError: There are none.
    """
    if not (runs / "stores").is_dir():
        raise ShortlistError(f"{runs}: no runs yet; make run first")
    return State.open(runs)
