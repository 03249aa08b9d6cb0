"""The log as it was declared when a model was trained: whether it is read in another way now, and reading it again."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from shortlist.contracts import DataError, ShortlistError
from shortlist.data.ingest import ingest
from shortlist.data.reading.remote_input import fetch_input
from shortlist.data.rules.table_rules import CAN_WARN
from shortlist.data.until import parse_until
from shortlist.data.validate import validate
from shortlist.features.declared.plan import Plan
from shortlist.features.values.columns import DeclaredColumns
from shortlist.spec.data import Data
from shortlist.spec.runtime import Runtime


class LogSource(NamedTuple):
    """Files from which a run's log was read."""

    location: str
    """Path or address of the user's files; empty for a generated log."""
    until: str = ""
    """Time at and after which no row is read, ISO 8601; may be empty."""


def is_read_differently(planned: Plan, data: Data) -> bool:
    """Return whether a column that features read has another place, type or role in the log as it is declared now."""
    declared_then, now = planned.declared, DeclaredColumns(data)
    roles_then = declared_then.data.user, declared_then.data.item, declared_then.data.slate, declared_then.timezone
    if roles_then != (data.user, data.item, data.slate, now.timezone):
        return True
    for name in {*planned.read, *planned.read_for_counting} & declared_then.data.by_name.keys():
        if name not in data.by_name or declared_then.row_column(name) != now.row_column(name):
            return True
        earlier_column, present_column = declared_then.column(name), now.column(name)
        if (earlier_column.type, earlier_column.tag_type) != (present_column.type, present_column.tag_type):
            return True
    return False


def lenient_declaration(declared_then: Data, now: Data) -> Data:
    """Return a declaration of earlier whose rules refuse rows alone, with today's split."""
    changes = {"off": CAN_WARN, "warn": (), "undeclared_columns": "ignore"}
    ratio = now.rules.min_volume_ratio  # a part of the split
    rules = declared_then.rules.model_copy(update={**changes, "min_volume_ratio": ratio})
    live = declared_then.live.model_copy(update={"collect": False})
    return declared_then.model_copy(update={"rules": rules, "live": live, "split": now.split})


def read_log_of(data: Data, source: LogSource | None, runtime: Runtime, folder: Path) -> Path:
    """Return the valid log of a declaration of earlier."""
    if source is None:
        raise ShortlistError("the columns that it reads are declared in another way now, and its log cannot be read")
    raw, valid = folder / "raw", folder / "log"
    try:
        with fetch_input(source.location) as files:
            ingest(data, files, raw, runtime)
        validate(data, raw, valid, folder / "quarantine", runtime, datetime.now(UTC), parse_until(source.until))
    except DataError as problem:
        raise ShortlistError(
            "the columns that it reads are declared in another way now, and the log cannot be read as it was declared"
            f" then: {problem}"
        ) from None
    shutil.rmtree(raw)
    return valid
