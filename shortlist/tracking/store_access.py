"""Where the MLflow store is, and how to call it: one process at a time where that matters, and quietly."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Final, NamedTuple

from filelock import FileLock

from shortlist.contracts import ShortlistError
from shortlist.storage.objects import open_object_store
from shortlist.storage.storage_config import StorageConfig, redact_passwords

_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgresql://", "postgresql+psycopg://")
_SERVER: Final = ("http://", "https://")
_FOREIGN: Final = ("mlflow.", "sqlalchemy.", "requests.", "boto3.", "botocore.")
"""Packages whose errors mean that the store is unavailable or refuses."""


class TrackingError(ShortlistError):
    """MLflow cannot be reached, or refuses."""


class TrackingLocation(NamedTuple):
    """Where a spec's MLflow store is."""

    uri: str
    """Its address; it may hold a password."""
    files: str | None = None
    """Where runs' files go; None: beside a SQLite store, or where a server puts them."""


def tracking_location(stores: StorageConfig, spec: str) -> TrackingLocation:
    """Return where MLflow keeps a spec's runs and their files.

    A database has no place for files: they go to the object store, below `mlflow/<spec>`. A server knows its own.

    Raises:
        ShortlistError: The environment variable with the address is not set, or holds none; it is not repeated.
    """
    uri = stores.tracking_uri
    if uri is None:
        return TrackingLocation(tracking_uri(stores.below("mlflow.db").parent))
    if uri.startswith(_POSTGRES):
        return TrackingLocation(uri, open_object_store(stores).url(f"mlflow/{spec}"))
    if not uri.startswith(_SERVER):
        raise ShortlistError(
            f"runtime.tracking: wanted http(s)://... or postgresql://..., but the environment variable"
            f" {stores.tracking_variable} holds something else"
        )
    return TrackingLocation(uri)


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
    """Let one process at a time make a store's tables; two that migrate a new store at once both fail.

    Raises:
        ShortlistError: PostgreSQL cannot be reached, or refuses.
    """
    if uri.startswith(_POSTGRES):
        from shortlist.storage.records.postgres import open_postgres  # loads the driver

        # MLflow alone would try for minutes to reach a database that is unavailable; the lock says so soon.
        with open_postgres(uri, "", "tracking", "").lock("migration"):
            yield
        return
    database = database_of(uri)
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(database.with_suffix(".lock")):
        yield


def create_if_missing(make: Callable[[], object]) -> None:
    """Make something that has a name, unless another process was quicker."""
    try:
        make()
    except Exception as error:
        if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
            raise


@contextmanager
def quiet_mlflow(uri: str) -> Iterator[None]:
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
            raise TrackingError(redact_passwords(f"MLflow at {uri}: {error}")) from error
        raise
