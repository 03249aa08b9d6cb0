"""The Delta tables of the logs: their addresses, opening them, and their errors as one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from shortlist.contracts import ShortlistError
from shortlist.serving.log.log_rows import first_line

_PATIENCE: Final = {"connect_timeout": "10s", "timeout": "60s", "max_retries": "3", "retry_timeout": "30s"}
"""Who asks tries again later: a store that is away must not stop it for minutes."""
LogKind = Literal["predictions", "outcomes"]


def table_address(objects: str, spec: str, kind: LogKind) -> str:
    """Return the address of a spec's log in an object store.

    >>> table_address("s3://bucket/prefix", "demo", "predictions")
    's3://bucket/prefix/logs/demo/predictions'
    """
    return f"{objects.rstrip('/')}/logs/{spec}/{kind}"


def table_options(address: str) -> dict[str, str]:
    """Return the options of the store of a table; credentials are found in the environment or on the machine."""
    if "://" not in address or address.startswith("file://"):
        return {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    is_own = address.startswith("s3://") and endpoint
    own = {"aws_endpoint": endpoint, "aws_allow_http": str(endpoint.startswith("http://")).lower()} if is_own else {}
    return {**_PATIENCE, **own}


def newest_version(table: DeltaTable | None, address: str) -> DeltaTable | None:
    """Return the newest version of a table; None when nothing was written yet.

    Args:
        table: An earlier version, which is brought up to date; None to open the table.
        address: Address of the table.

    Raises:
        ShortlistError: It cannot be read.
    """
    options = table_options(address)
    with table_errors(address):
        if table is not None:
            table.update_incremental()
            return table
        try:
            return DeltaTable(address, storage_options=options)
        except TableNotFoundError:
            return None


def file_column(table: DeltaTable, name: str) -> dict[str, Any]:
    """Return what a table knows of its files without reading them, by their path.

    Args:
        table: A version of the table.
        name: Such as `size_bytes`, `partition.day`, `min.offset`, `max.offset`.
    """
    actions = pa.table(table.get_add_actions(flatten=True))
    return dict(zip(actions["path"].to_pylist(), actions[name].to_pylist(), strict=True))


@contextmanager
def table_errors(address: str | Path) -> Iterator[None]:
    """Raise errors of a table as a ShortlistError; a conflict of two commits stays a `CommitFailedError`."""
    try:
        yield
    except CommitFailedError:
        raise
    except (DeltaError, OSError) as error:
        raise ShortlistError(
            f"{address}: the table cannot be read or written ({first_line(error)}); make it accessible, or restore"
            " its folder _delta_log from a backup, and run again"
        ) from None
