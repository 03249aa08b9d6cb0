"""Columns that a candidate's model reads from requests and that no request carries yet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import polars as pl

from shortlist.serving.log.log_follower import LogFollower
from shortlist.serving.log.logs import REPLAYED_ID, logged_inputs, logged_name, prediction_schema
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
    """Return a sentence with the columns that a candidate reads, the stable version does not, and no client sends.

    Args:
        objects: Files that the servers share, see `VersionInputs`.
        paths: Location of the prediction log.
        stable: The version that serves.
        candidate: The version that is rolled out; its servers have been started.
        data: The candidate's declaration of the log.

    Returns:
        The sentence; empty when there is no such column.
    """
    candidate_inputs, stable_inputs = (read_version_inputs(objects, version) for version in (candidate, stable))
    if candidate_inputs is None or stable_inputs is None:
        return ""
    new_names = (candidate_inputs.read - stable_inputs.read - carried_inputs(objects)) & set(logged_inputs(data))
    if not new_names:
        return ""
    columns = {logged_name(name): name for name in sorted(new_names)}
    log = ServingLog.of_spec(paths, "predictions", prediction_schema(data))
    read_columns = ["track", "request_id", *columns]
    follower = LogFollower(log, read_columns, datetime.now(UTC) - timedelta(hours=_NEWEST_HOURS))
    rows = pl.concat([log.empty(read_columns), *follower.read_new()])
    # A load test asks a version past the gateway, which sets the track; neither it nor a replay is a client.
    requests = rows.filter(
        pl.col("track").is_not_null(), ~pl.col("request_id").str.starts_with(REPLAYED_ID).fill_null(value=False)
    )
    unsent = [name for column, name in columns.items() if requests.filter(pl.col(column).is_not_null()).is_empty()]
    if not unsent:
        return ""
    names = ", ".join(f"'{name}'" for name in unsent)
    reads = f"version {candidate} reads {names}"
    if requests.height < _MIN_REQUESTS:
        reads += (
            f", which version {stable} does not; clients sent {requests.height:,} requests in the last"
            f" {_NEWEST_HOURS} h, too few to see whether they send it. Where they do not,"
        )
    else:
        reads += f", which none of the newest {requests.height:,} requests carries:"
    return f"{reads} its rows are scored without it. Clients may send it from now on; version {stable} passes it over"
