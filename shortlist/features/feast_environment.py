"""The environment in which Feast reads `feature_repo/`, and quiet while it works."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Final

from shortlist.config.runtime import RedisOnline, SQLiteOnline
from shortlist.contracts import ShortlistError

FEATURE_REPO: Final = Path(__file__).resolve().parents[2] / "feature_repo"

PROJECT_VARIABLE: Final = "SHORTLIST_PROJECT"
REGISTRY_VARIABLE: Final = "SHORTLIST_REGISTRY"
ONLINE_VARIABLE: Final = "SHORTLIST_ONLINE_STORE"
VIEWS_VARIABLE: Final = "SHORTLIST_VIEWS"
USER_VARIABLE: Final = "SHORTLIST_USER"

_CONNECTION: Final = re.compile(r"[^:,=]+:\d+(,|$)")


def variables(
    views: Path, store: Path, project: str, online: SQLiteOnline | RedisOnline, user: str | None = None
) -> dict[str, str]:
    """Return the environment in which `feature_repo/` is read: by this module, or by the `feast` command.

    The values may hold a password: never print them.

    Raises:
        ShortlistError: The environment variable that holds the Redis connection is not set.
    """
    return {
        PROJECT_VARIABLE: project.replace("-", "_"),  # Feast puts it into table names
        REGISTRY_VARIABLE: json.dumps(f"sqlite:///{store.resolve()}/registry.db"),
        ONLINE_VARIABLE: json.dumps(_online_store(store, online)),
        VIEWS_VARIABLE: str(views.resolve()),
        USER_VARIABLE: user or "",
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
        ShortlistError: Redis cannot be reached, or refuses.
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
            raise ShortlistError(f"runtime.online_store: Redis says: {error}") from error
        raise
    finally:
        logger.setLevel(level)


def _online_store(store: Path, online: SQLiteOnline | RedisOnline) -> dict[str, Any]:
    if isinstance(online, SQLiteOnline):
        return {"type": "sqlite", "path": f"{store.resolve()}/online.db"}
    connection = os.environ.get(online.connection_variable, "")
    if not _CONNECTION.match(connection):
        found = "does not hold one" if connection else "is not set"  # what it holds may be a password
        raise ShortlistError(
            f"runtime.online_store: wanted `host:port[,password=...]`, but the environment variable"
            f" {online.connection_variable} {found}. Set it, or declare `online_store: {{kind: sqlite}}`."
        )
    # skip_dedup: Redis would otherwise keep an old value whose moment equals the new one's, as every side table's does.
    return {"type": "redis", "connection_string": connection, "skip_dedup": True}
