"""What one server process in front of Triton is told when it starts."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from shortlist.config.runtime import RedisOnline, SQLiteOnline
from shortlist.config.serving import Serving
from shortlist.features.place import FeastPlace, place_in, place_of
from shortlist.stores import Stores


class ServerSettings(BaseModel):
    """The settings file of a version's server; read once, at its start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    """Name under which clients ask, and of the model in Triton: the spec's name."""
    version: int
    """Registered version."""
    model_folder: Path
    """The blessed model folder: `preprocessing/` and `serving/`."""
    predictor: str
    """`host:port` of Triton's HTTP."""
    host: str = "127.0.0.1"
    """Address that both ports are on; in a pod all of its own."""
    http_port: int
    grpc_port: int
    store: Path | Stores | None
    """Folder of the spec's Feast store, or the stores it is in; None for a model that looks nothing up."""
    project: str
    """Feast project."""
    online_store: SQLiteOnline | RedisOnline = SQLiteOnline()
    """Where Feast keeps users' rows."""
    predictions: Path
    """Folder of the prediction log; this process makes one of its own inside."""
    serving: Serving = Serving()
    """The spec's section."""

    @cached_property
    def place(self) -> FeastPlace | None:
        """The spec's Feast store; None for a model that looks nothing up."""
        if isinstance(self.store, Stores):
            return place_in(self.store, self.project)
        return None if self.store is None else place_of(self.store)
