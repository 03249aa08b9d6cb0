"""Where monitoring reads live traffic: the logs on this disk, or a mirror of those in the object store."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Final

from monitoring.records import WindowReport
from shortlist.serving.log.log_keys import log_key
from shortlist.serving.log.log_mirror import mirror
from shortlist.serving.paths import ServingPaths
from shortlist.storage.objects import open_object_store
from shortlist.storage.storage_config import StorageConfig

_LATE: Final = timedelta(days=7)
"""What a server wrote is shipped within this time after it; what comes later finds its window judged."""


def live_logs(stores: StorageConfig, name: str, newest: WindowReport | None = None) -> ServingPaths:
    """Return where a spec's logs can be read, after fetching what is new.

    Args:
        stores: Where everything is.
        name: Of the spec.
        newest: Of the windows that were judged; what was written long before it is not fetched.

    Raises:
        ShortlistError: The object store is unavailable or refuses.
    """
    places = ServingPaths.of(stores.runs, name)
    if not stores.has_remote_log:
        return places
    objects, mirrored = open_object_store(stores), places.mirror
    since = _first_day(newest)
    mirror(objects, log_key(name, "predictions"), mirrored.predictions, since)
    mirror(objects, log_key(name, "outcomes"), mirrored.outcomes, since)
    return mirrored


def _first_day(newest: WindowReport | None) -> date | None:
    # A request is about a moment before it was written: nothing of a later window was written before this one began.
    return None if newest is None else (newest.start - _LATE).date()
