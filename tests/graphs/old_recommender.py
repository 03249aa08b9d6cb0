"""A demo whose log was not shown by a recommender with known propensities."""

from __future__ import annotations

from typing import Any

_COLUMNS = {"request_id", "place", "propensity", "randomized"}


def leave_out_recommender(data: dict[str, Any]) -> None:
    """Take the old recommender, and the columns that it writes, out of a spec's section `data`."""
    data["source"].pop("recommender", None)
    for role in ("request", "position", "propensity", "randomized"):
        del data[role]
    data["columns"] = [column for column in data["columns"] if column["name"] not in _COLUMNS]
