"""A request that a person can paste into a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import polars as pl

from shortlist.contracts import Files
from shortlist.serving.server.headers import USER_HEADER
from shortlist.spec.data import Data
from shortlist.storage.tables import DayTable

_ITEMS: Final = 3


def example_request(url: str, model: str, data: Data, log: Path) -> str:
    """Return a curl command that ranks items of the log for one of its users; what inputs there are, without ids.

    Args:
        url: Where the model is served.
        model: Its name.
        data: The log's declaration.
        log: Folder of the valid log.
    """
    if data.user is None or data.item is None:
        return f"curl -s {url}/v2/models/{model}"
    newest = DayTable.open(log, Files.LOG).paths()[-1]
    rows = pl.read_parquet(newest, columns=[data.user, data.item], hive_partitioning=False)
    user, items = rows[data.user][-1], rows[data.item].unique(maintain_order=True).tail(_ITEMS).to_list()
    body = json.dumps({"inputs": [_tensor(data.user, [user]), _tensor(data.item, items)]})
    return f"curl -s {url}/v2/models/{model}/infer -H '{USER_HEADER}: {user}' -d '{body}'"


def _tensor(name: str, values: list[Any]) -> dict[str, Any]:
    datatype = "BYTES" if isinstance(values[0], str) else "INT64"
    return {"name": name, "shape": [len(values)], "datatype": datatype, "data": values}
