"""Columns that a candidate's model reads from requests and that no request carries yet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import polars as pl

from shortlist.serving.log.log_follower import LogFollower
from shortlist.serving.log.logs import logged_inputs, logged_name, prediction_schema
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.paths import ServingPaths
from shortlist.serving.server.request_inputs.version_inputs import carried_inputs, read_version_inputs
from shortlist.spec.data import Data
from shortlist.storage.objects import ObjectStore

_NEWEST_HOURS: Final = 1
"""Age of the answers that are looked at."""
_MIN_REQUESTS: Final = 100
"""Fewest logged requests that say anything about what clients send."""


def describe_unsent_inputs(objects: ObjectStore, paths: ServingPaths, stable: int, candidate: int, data: Data) -> str:
    """Return a sentence with the columns that a candidate reads, the stable version does not, and no request carries.

    Args:
        objects: Files that the servers share, see `VersionInputs`.
        paths: Location of the prediction log.
        stable: The version that serves.
        candidate: The version that is rolled out; its servers have been started.
        data: The candidate's declaration of the log.

    Returns:
        The sentence; empty when there is no such column, or too few requests are logged.
    """
    candidate_inputs, stable_inputs = (read_version_inputs(objects, version) for version in (candidate, stable))
    if candidate_inputs is None or stable_inputs is None:
        return ""
    new_names = (candidate_inputs.read - stable_inputs.read - carried_inputs(objects)) & set(logged_inputs(data))
    if not new_names:
        return ""
    columns = {logged_name(name): name for name in sorted(new_names)}
    log = ServingLog.of_spec(paths, "predictions", prediction_schema(data))
    follower = LogFollower(log, list(columns), datetime.now(UTC) - timedelta(hours=_NEWEST_HOURS))
    rows = pl.concat([log.empty(list(columns)), *follower.read_new()])
    unsent = [name for column, name in columns.items() if rows.filter(pl.col(column).is_not_null()).is_empty()]
    if not unsent or rows.height < _MIN_REQUESTS:
        return ""
    names = ", ".join(f"'{name}'" for name in unsent)
    return (
        f"version {candidate} reads {names}, which none of the newest {rows.height:,} requests carries: its rows are"
        f" scored without it. Clients may send it from now on; version {stable} passes it over"
    )
