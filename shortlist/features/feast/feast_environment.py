"""Environment variables with which Feast reads `feature_repo/`, and suppression of its output."""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Final

from shortlist.contracts import ShortlistError, StoreUnavailableError
from shortlist.features.feast.feast_store_location import FeastStoreLocation, feast_store_location
from shortlist.features.online_stores.registry import ONLINE_STORES
from shortlist.spec.runtime import OnlineStore
from shortlist.storage.storage_config import redact_passwords

PROJECT_VARIABLE: Final = "SHORTLIST_PROJECT"
REGISTRY_VARIABLE: Final = "SHORTLIST_REGISTRY"
ONLINE_VARIABLE: Final = "SHORTLIST_ONLINE_STORE"
VIEWS_VARIABLE: Final = "SHORTLIST_VIEWS"
USER_VARIABLE: Final = "SHORTLIST_USER"
ADDRESS_VARIABLE: Final = "SHORTLIST_VIEWS_ADDRESS"


def environment_variables(
    views: Path,
    store: Path | FeastStoreLocation,
    project: str,
    online: OnlineStore,
    user: str | None = None,
    address: str = "",
) -> dict[str, str]:
    """Return the environment variables with which `feature_repo/` is read: by this module, or by the `feast` command.

    The values may hold a password: never print them.

    Args:
        views: Folder of the views on this machine.
        store: The spec's Feast store.
        project: Name of the spec.
        online: The online store.
        user: The column that is the user.
        address: Address at which the views were published, if they were; for readers of the registry.

    Raises:
        ShortlistError: The environment variable that holds the online store's address is not set.
    """
    location = feast_store_location(store)
    slot = f"_{location.slot.upper()}" if location.slot else ""  # specs have names without capitals
    return {
        PROJECT_VARIABLE: project.replace("-", "_") + slot,  # Feast puts it into table names
        REGISTRY_VARIABLE: json.dumps(location.registry),
        ONLINE_VARIABLE: json.dumps(online.configuration(location.file)),
        VIEWS_VARIABLE: str(views.resolve()),
        USER_VARIABLE: user or "",
        ADDRESS_VARIABLE: address,
    }


@contextmanager
def temporary_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Run a block with these environment variables."""
    previous_values = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in previous_values.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


_UNAVAILABLE: Final = ("ConnectionError", "TimeoutError", "BusyLoadingError", "OperationalError")
"""Errors of the clients of Redis and PostgreSQL after which the same call may succeed later."""


@contextmanager
def silence_feast() -> Iterator[None]:
    """Suppress Feast's prints, log lines and third-party deprecations; errors still raise.

    Raises:
        StoreUnavailableError: The online store or PostgreSQL cannot be reached.
        ShortlistError: One of them refuses.
    """
    logger = logging.getLogger("feast")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        explanation = next(
            filter(None, (online_store.explain_error(error) for online_store in ONLINE_STORES.values())), ""
        )
        original = getattr(error, "orig", None)  # SQLAlchemy's errors carry the driver's
        unavailable = type(original or error).__name__ in _UNAVAILABLE
        explained = StoreUnavailableError if unavailable else ShortlistError
        if explanation:
            raise explained(redact_passwords(f"runtime.online_store: {explanation}")) from error
        if type(original).__module__.startswith("psycopg"):
            raise explained(redact_passwords(f"runtime.database: PostgreSQL says: {original}")) from None
        raise
    finally:
        logger.setLevel(level)
