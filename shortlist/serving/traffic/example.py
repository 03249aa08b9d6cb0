"""Example requests as curl commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from shortlist.contracts import Files
from shortlist.serving.server.requests.headers import USER_HEADER, recommend_model
from shortlist.spec.data import Data
from shortlist.storage.tables import DayTable

_EXAMPLE_ITEMS: Final = 3
_EXAMPLE_K: Final = 10
_DATATYPES: Final = {int: "INT64", float: "FP64", str: "BYTES"}


def example_requests(url: str, model: str, data: Data, log: Path, context: Sequence[str] | None = None) -> str:
    """Return curl commands that rank items of the log for one of its users; without ids, one that lists the inputs.

    Args:
        url: URL of the server.
        model: Name of the model.
        data: Declared columns of the log.
        log: Folder of the valid log.
        context: Context columns of a request for recommendations, for a second command that requests ten items; None
            when the version serves scores only.
    """
    if data.user is None or data.item is None:
        return f"curl -s {url}/v2/models/{model}"
    newest = DayTable.open(log, Files.LOG).paths()[-1]
    columns = list(dict.fromkeys([data.user, data.item, *(context or ())]))
    rows = pl.read_parquet(newest, columns=columns, hive_partitioning=False)
    last_row = rows.row(-1, named=True)
    user, items = last_row[data.user], rows[data.item].unique(maintain_order=True).tail(_EXAMPLE_ITEMS).to_list()
    commands = [_curl(url, model, user, {data.user: [user], data.item: items})]
    if context is not None:
        context_inputs = {name: [last_row[name]] for name in context if type(last_row[name]) in _DATATYPES}
        commands.append(
            _curl(url, recommend_model(model), user, {"k": [_EXAMPLE_K], data.user: [user]} | context_inputs)
        )
    return "\n".join(commands)


def _curl(url: str, model: str, user: Any, inputs: dict[str, list[Any]]) -> str:
    body = json.dumps({"inputs": [_tensor(name, values) for name, values in inputs.items()]})
    header = shlex.quote(f"{USER_HEADER}: {user}")
    return f"curl -s {url}/v2/models/{model}/infer -H {header} -d {shlex.quote(body)}"


def _tensor(name: str, values: list[Any]) -> dict[str, Any]:
    return {"name": name, "shape": [len(values)], "datatype": _DATATYPES[type(values[0])], "data": values}
