"""The environment in which Feast reads `feature_repo/`, and quiet while it works."""

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

from shortlist.contracts import ShortlistError
from shortlist.features.feast_store_location import FeastStoreLocation, feast_store_location
from shortlist.features.online_stores.registry import ONLINE_STORES
from shortlist.spec.runtime import OnlineStore
from shortlist.storage.storage_config import redact_passwords

PROJECT_VARIABLE: Final = "SHORTLIST_PROJECT"
REGISTRY_VARIABLE: Final = "SHORTLIST_REGISTRY"
ONLINE_VARIABLE: Final = "SHORTLIST_ONLINE_STORE"
VIEWS_VARIABLE: Final = "SHORTLIST_VIEWS"
USER_VARIABLE: Final = "SHORTLIST_USER"
ADDRESS_VARIABLE: Final = "SHORTLIST_VIEWS_ADDRESS"


def variables(
    views: Path,
    store: Path | FeastStoreLocation,
    project: str,
    online: OnlineStore,
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
        ShortlistError: The environment variable that holds the online store's address is not set.
    """
    place = feast_store_location(store)
    slot = f"_{place.slot.upper()}" if place.slot else ""  # specs have names without capitals
    return {
        PROJECT_VARIABLE: project.replace("-", "_") + slot,  # Feast puts it into table names
        REGISTRY_VARIABLE: json.dumps(place.registry),
        ONLINE_VARIABLE: json.dumps(online.configuration(place.file)),
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
        ShortlistError: The online store or PostgreSQL cannot be reached, or refuses.
    """
    logger = logging.getLogger("feast")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        explained = next(filter(None, (kind.explained(error) for kind in ONLINE_STORES.values())), "")
        if explained:
            raise ShortlistError(redact_passwords(f"runtime.online_store: {explained}")) from error
        original = getattr(error, "orig", None)  # SQLAlchemy's errors carry the driver's
        if type(original).__module__.startswith("psycopg"):
            raise ShortlistError(redact_passwords(f"runtime.database: PostgreSQL says: {original}")) from None
        raise
    finally:
        logger.setLevel(level)
