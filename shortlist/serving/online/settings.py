"""What one server process in front of Triton is told when it starts."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from shortlist.config.runtime import RedisOnline, SQLiteOnline
from shortlist.config.serving import Serving


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
    http_port: int
    """On 127.0.0.1."""
    grpc_port: int
    """On 127.0.0.1."""
    store: Path | None
    """Folder of the spec's Feast store; None for a model that looks nothing up."""
    project: str
    """Feast project."""
    online_store: SQLiteOnline | RedisOnline = SQLiteOnline()
    """Where Feast keeps users' rows."""
    predictions: Path
    """Folder of the prediction log; this process makes one of its own inside."""
    serving: Serving = Serving()
    """The spec's section."""
