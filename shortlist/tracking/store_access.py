"""Location of the MLflow store, a lock for its migrations, and calls without its log output."""

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

from shortlist.contracts import ShortlistError, StoreUnavailableError
from shortlist.storage.objects import open_object_store
from shortlist.storage.storage_config import StorageConfig, redact_passwords

_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgresql://", "postgresql+psycopg://")
_SERVER: Final = ("http://", "https://")
_STORE_PACKAGES: Final = ("mlflow.", "sqlalchemy.", "requests.", "boto3.", "botocore.")
"""Packages whose errors mean that the store is unavailable or refuses."""


_UNAVAILABLE: Final = ("ConnectionError", "Timeout", "OperationalError", "EndpointConnectionError", "ReadTimeoutError")
"""Errors of clients that reached no store."""


class TrackingError(ShortlistError):
    """MLflow cannot be reached, or refuses a call."""


class TrackingUnavailableError(TrackingError, StoreUnavailableError):
    """MLflow, its database or the store of its files cannot be reached."""


class TrackingLocation(NamedTuple):
    """Location of a spec's MLflow store."""

    uri: str
    """Its address, which may contain a password."""
    files: str | None = None
    """Location of the runs' files; None: beside a SQLite store, or where a server puts them."""


def tracking_location(stores: StorageConfig, spec: str) -> TrackingLocation:
    """Return the location of a spec's runs in MLflow and of their files.

    With a database, files go to the object store, below `mlflow/<spec>`; a server has its own location for files.

    Raises:
        ShortlistError: The environment variable is not set, or is no address; its value is not shown.
    """
    uri = stores.tracking_uri
    if uri is None:
        return TrackingLocation(tracking_uri(stores.path_in_folder("mlflow.db").parent))
    if uri.startswith(_POSTGRES):
        return TrackingLocation(uri, open_object_store(stores).url(f"mlflow/{spec}"))
    if not uri.startswith(_SERVER):
        raise ShortlistError(
            f"runtime.tracking: wanted http(s)://... or postgresql://..., but the environment variable"
            f" {stores.tracking_variable} has another value"
        )
    return TrackingLocation(uri)


def tracking_uri(runs: Path) -> str:
    """Return the address of MLflow's store: `MLFLOW_TRACKING_URI`, or `mlflow.db` in the folder of runs."""
    return os.environ.get("MLFLOW_TRACKING_URI") or sqlite_uri(runs / "mlflow.db")


def sqlite_uri(database: Path) -> str:
    """Return the address of a SQLite store."""
    return f"{_SQLITE}{database.resolve()}"


def database_of(uri: str) -> Path | None:
    """Return the file of a SQLite store, None for any other store."""
    return Path(uri.removeprefix(_SQLITE)).resolve() if uri.startswith(_SQLITE) else None


def files_beside(uri: str, spec: str) -> str | None:
    """Return the location of a spec's files with a SQLite store: `runs/mlflow/<spec>` beside `runs/mlflow.db`.

    None for a server, which has its own location.
    """
    database = database_of(uri)
    return None if database is None else (database.with_suffix("") / spec).as_uri()


@contextmanager
def migration_lock(uri: str) -> Iterator[None]:
    """Hold the lock under which a store's tables are created; two concurrent migrations of a new store both fail.

    Raises:
        ShortlistError: PostgreSQL cannot be reached, or refuses.
    """
    if uri.startswith(_POSTGRES):
        from shortlist.storage.records.postgres import open_postgres  # loads the driver

        # MLflow tries for minutes to reach an unavailable database; the lock fails soon.
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
    """Create a named object; that another process has created it is fine."""
    try:
        make()
    except Exception as error:
        if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
            raise


@contextmanager
def quiet_mlflow(uri: str) -> Iterator[None]:
    """Hide MLflow's log output and third-party deprecations, and raise its errors as `TrackingError`.

    Raises:
        TrackingUnavailableError: MLflow cannot be reached.
        TrackingError: It refuses; a password in the address is not shown.
    """
    logging.getLogger("alembic").setLevel(logging.WARNING)  # MLFLOW_LOGGING_LEVEL does not reach it
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        if type(error).__module__.startswith(_STORE_PACKAGES):
            explained = TrackingUnavailableError if _is_unavailable(error) else TrackingError
            raise explained(redact_passwords(f"MLflow at {uri}: {error}")) from error
        raise


def _is_unavailable(error: Exception) -> bool:
    """Return whether a call of MLflow may succeed later: its client has tried again for some time by then."""
    no_answer = str(error).startswith("API request to ") and " failed with " in str(error)
    is_connection_error = type(error).__name__ in _UNAVAILABLE
    return no_answer or is_connection_error or getattr(error, "error_code", "") == "TEMPORARILY_UNAVAILABLE"
