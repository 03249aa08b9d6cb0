"""Where runs on this machine keep what outlives them: MLflow, Feast, the cache, the pages."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from shortlist.artefacts import write_text
from shortlist.contracts import ShortlistError


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


def existing(runs: Path) -> State:
    """Return the state of runs that were made before.

    Raises:
        ShortlistError: There are none.
    """
    if not (runs / "stores").is_dir():
        raise ShortlistError(f"{runs}: no runs yet; make run first")
    return State.open(runs)
