"""Example requests as curl commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from shortlist.contracts import Files
from shortlist.serving.log.logs import logged_inputs
from shortlist.serving.server.requests.headers import USER_HEADER
from shortlist.serving.server.requests.paths import RANK, RECOMMEND, model_path
from shortlist.spec.data import Data
from shortlist.spec.retrieval import Retrieval
from shortlist.storage.tables import DayTable

_EXAMPLE_ITEMS: Final = 3
_EXAMPLE_K: Final = 10
_ITEM_SHARE: Final = 0.9
"""Share of items with one value from which a column is one of items."""
_JSON_TYPES: Final = (int, float, str)


def example_requests(
    url: str, model: str, data: Data, read: Collection[str], log: Path, retrieval: Retrieval | None = None
) -> str:
    """Return curl commands that rank items of the log for one of its users; without ids, one that lists the inputs.

    The requests send what a client has to send: of the user's last row, the columns known before that the version
    reads, and with each item the columns that it determines. Ids of the impression, the request or the slate are not
    among them: in serving, every request is one slate.

    Args:
        url: URL of the server.
        model: Name of the model.
        data: Declared columns of the log.
        read: Columns of the log that the version reads, see `Plan.columns_of_log`.
        log: Folder of the valid log.
        retrieval: Section of the served version, for a second command that requests ten items; None when it serves
            scores only.
    """
    if data.user is None or data.item is None:
        return f"curl -s {url}{model_path(model)}"
    context, item_columns = (retrieval.context, retrieval.item_columns) if retrieval is not None else ((), ())
    unsent = {data.user, data.item, data.slate.column if data.slate is not None else None}
    sendable = [name for name in logged_inputs(data) if name not in unsent]
    request_columns = [name for name in sendable if name in read or name in context]
    newest = DayTable.open(log, Files.LOG).paths()[-1]
    columns = dict.fromkeys((data.user, data.item, *request_columns, *item_columns))
    rows = pl.read_parquet(newest, columns=list(columns), hive_partitioning=False)
    last_row = rows.row(-1, named=True)
    user = last_row[data.user]
    undecided = [name for name in request_columns if name not in (*context, *item_columns)]
    item_columns = (*item_columns, *_columns_of_items(rows, data.item, undecided))
    item_rows = rows.select(data.item, *item_columns).unique(data.item, keep="last", maintain_order=True)
    items = [_item(data.item, row) for row in item_rows.tail(_EXAMPLE_ITEMS).to_dicts()]
    sent = _values({name: last_row[name] for name in request_columns if name not in item_columns})
    commands = [_curl(url, RANK, {"user": user, "items": items} | _context(sent))]
    if retrieval is not None:
        shared = {name: value for name, value in sent.items() if name in context}
        commands.append(_curl(url, RECOMMEND, {"user": user, "k": _EXAMPLE_K} | _context(shared)))
    return "\n".join(commands)


def _columns_of_items(rows: pl.DataFrame, item: str, names: Sequence[str]) -> list[str]:
    """Return the columns with one value per item, and several over all items: nearly always, as a price may change."""
    rows_of_items = rows.filter(pl.len().over(item) > 1)
    if rows_of_items.is_empty() or not names:
        return []
    values = rows_of_items.group_by(item).agg(pl.col(names).drop_nulls().n_unique() <= 1).select(pl.col(names).mean())
    shares, distinct = values.row(0, named=True), rows.select(pl.col(names).drop_nulls().n_unique()).row(0, named=True)
    return [name for name in names if shares[name] >= _ITEM_SHARE and distinct[name] > 1]


def _item(key: str, row: dict[str, Any]) -> Any:
    """Return an item's id, or an object where it has columns of its own."""
    values = _values(row)
    return values if len(values) > 1 else row[key]


def _values(row: dict[str, Any]) -> dict[str, Any]:
    """Return the values that JSON has; nulls are left out."""
    return {name: value for name, value in row.items() if type(value) in _JSON_TYPES}


def _context(columns: dict[str, Any]) -> dict[str, Any]:
    return {"context": columns} if columns else {}


def _curl(url: str, path: str, request: dict[str, Any]) -> str:
    header = shlex.quote(f"{USER_HEADER}: {request['user']}")
    return f"curl -s {url}{path} -H {header} -d {shlex.quote(json.dumps(request))}"
