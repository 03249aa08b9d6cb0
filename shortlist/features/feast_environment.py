"""The environment in which Feast reads `feature_repo/`, and quiet while it works."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import socket
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Final

from shortlist.config.runtime import RedisOnline, SQLiteOnline
from shortlist.contracts import ShortlistError
from shortlist.features.place import ONLINE, FeastPlace, place_of
from shortlist.stores import without_secret

FEATURE_REPO: Final = Path(__file__).resolve().parents[2] / "feature_repo"

PROJECT_VARIABLE: Final = "SHORTLIST_PROJECT"
REGISTRY_VARIABLE: Final = "SHORTLIST_REGISTRY"
ONLINE_VARIABLE: Final = "SHORTLIST_ONLINE_STORE"
VIEWS_VARIABLE: Final = "SHORTLIST_VIEWS"
USER_VARIABLE: Final = "SHORTLIST_USER"
ADDRESS_VARIABLE: Final = "SHORTLIST_VIEWS_ADDRESS"

_REACH_SECONDS: Final = 5
_CONNECTION: Final = re.compile(r"[^:,=]+:\d+(,|$)")


def variables(
    views: Path,
    store: Path | FeastPlace,
    project: str,
    online: SQLiteOnline | RedisOnline,
    user: str | None = None,
    address: str = "",
) -> dict[str, str]:
    """Return the environment in which `feature_repo/` is read: by this module, or by the `feast` command.

    The values may hold a password: never print them.

    Args:
        views: Folder of the views on this machine.
        store: The spec's Feast store.
        project: Name of the spec.
        online: Where the online features are.
        user: The column that is the user.
        address: Where the views were published, if anywhere; for whoever reads the registry.

    Raises:
        ShortlistError: The environment variable that holds the Redis connection is not set.
    """
    return {
        PROJECT_VARIABLE: project.replace("-", "_"),  # Feast puts it into table names
        REGISTRY_VARIABLE: json.dumps(place_of(store).registry),
        ONLINE_VARIABLE: json.dumps(_online_store(place_of(store), online)),
        VIEWS_VARIABLE: str(views.resolve()),
        USER_VARIABLE: user or "",
        ADDRESS_VARIABLE: address,
    }


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Run the block with these environment variables."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Feast's prints, log lines and third-party deprecations from the user; errors still raise.

    Raises:
        ShortlistError: Redis or PostgreSQL cannot be reached, or refuses.
    """
    logger = logging.getLogger("feast")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        if type(error).__module__.startswith("redis."):
            raise ShortlistError(without_secret(f"runtime.online_store: Redis says: {error}")) from error
        original = getattr(error, "orig", None)  # SQLAlchemy's errors carry the driver's
        if type(original).__module__.startswith("psycopg"):
            raise ShortlistError(without_secret(f"runtime.database: PostgreSQL says: {original}")) from None
        raise
    finally:
        logger.setLevel(level)


def reach_online(online: SQLiteOnline | RedisOnline) -> None:
    """See that the online store's server answers; whether it takes the password, Feast will say.

    Raises:
        ShortlistError: It cannot be reached, or the variable with its address is not set.
    """
    if isinstance(online, SQLiteOnline):
        return
    where = _redis_connection(online).partition(",")[0]
    host, _, port = where.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_SECONDS).close()
    except OSError as error:
        raise ShortlistError(
            f"runtime.online_store: Redis at {where} cannot be reached ({error.strerror or error}); look at the"
            f" environment variable {online.connection_variable} and at the server"
        ) from None


def _online_store(place: FeastPlace, online: SQLiteOnline | RedisOnline) -> dict[str, Any]:
    if isinstance(online, SQLiteOnline):
        return {"type": "sqlite", "path": str(place.file(ONLINE))}
    # skip_dedup: Redis would otherwise keep an old value whose moment equals the new one's, as every side table's does.
    return {"type": "redis", "connection_string": _redis_connection(online), "skip_dedup": True}


def _redis_connection(online: RedisOnline) -> str:
    connection = os.environ.get(online.connection_variable, "")
    if not _CONNECTION.match(connection):
        found = "does not hold one" if connection else "is not set"  # what it holds may be a password
        raise ShortlistError(
            f"runtime.online_store: wanted `host:port[,password=...]`, but the environment variable"
            f" {online.connection_variable} {found}. Set it, or declare `online_store: {{kind: sqlite}}`."
        )
    return connection
