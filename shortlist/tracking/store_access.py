"""Where the MLflow store is, and how to call it: one process at a time where that matters, and quietly."""

from __future__ import annotations

import io
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Final

from filelock import FileLock

from shortlist.contracts import ShortlistError

_SQLITE: Final = "sqlite:///"
_FOREIGN: Final = ("mlflow.", "sqlalchemy.", "requests.")
"""Packages whose errors mean that the store is away or refuses."""


class TrackingError(ShortlistError):
    """MLflow cannot be reached, or refuses."""


def tracking_uri(runs: Path) -> str:
    """Return where MLflow keeps its store: `MLFLOW_TRACKING_URI`, or `mlflow.db` in the folder of runs."""
    return os.environ.get("MLFLOW_TRACKING_URI") or sqlite_uri(runs / "mlflow.db")


def sqlite_uri(database: Path) -> str:
    """Return the address of a SQLite store."""
    return f"{_SQLITE}{database.resolve()}"


def database_of(uri: str) -> Path | None:
    """Return the file of a SQLite store, None for any other."""
    return Path(uri.removeprefix(_SQLITE)).resolve() if uri.startswith(_SQLITE) else None


def files_beside(uri: str, spec: str) -> str | None:
    """Return where a SQLite store keeps a spec's files: `runs/mlflow/<spec>` beside `runs/mlflow.db`.

    None for a server, which knows its own place.
    """
    database = database_of(uri)
    return None if database is None else (database.with_suffix("") / spec).as_uri()


@contextmanager
def alone(uri: str) -> Iterator[None]:
    """Let one process at a time make a store's tables; two that migrate a new SQLite store at once both fail."""
    database = database_of(uri)
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(database.with_suffix(".lock")):
        yield


def unless_there(make: Callable[[], object]) -> None:
    """Make something that has a name, unless another process was quicker."""
    try:
        make()
    except Exception as error:
        if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
            raise


@contextmanager
def calm(uri: str) -> Iterator[None]:
    """Keep MLflow's chatter and third-party deprecations from the user, and turn its errors into ours.

    Raises:
        TrackingError: MLflow cannot be reached, or refuses; a password in the address is not shown.
    """
    logging.getLogger("alembic").setLevel(logging.WARNING)  # MLFLOW_LOGGING_LEVEL does not reach it
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        if type(error).__module__.startswith(_FOREIGN):
            address = re.sub(r"//[^@/]*@", "//***@", uri)
            raise TrackingError(f"MLflow at {address}: {error}") from error
        raise
