"""The prediction log and the outcome log: append-only folders of Parquet files."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from shortlist.config.data import Data


def prediction_schema(item: pa.DataType) -> pa.Schema:
    """Return the columns of the prediction log: one row per answered request.

    Args:
        item: Type of an item key: int64 or string.
    """
    return pa.schema(
        {
            "time": pa.timestamp("us", "UTC"),
            "request_id": pa.string(),  # of the x-request-id header, or given by the server
            "user": pa.string(),  # null when the request names none
            "track": pa.string(),  # stable or canary; null outside Envoy
            "rollout": pa.string(),  # id of the rollout under way; null when there is none
            "step": pa.int32(),  # its step, from 0
            "version": pa.int64(),  # registered version that scored
            "status": pa.int16(),  # 200, or 500 when the model gave no usable score
            "digest": pa.string(),  # 16 hexadecimal digits over the request's inputs
            "latency_ms": pa.float32(),  # inside the server
            "degraded": pa.bool_(),  # features could not be read and count as unknown
            "items": pa.list_(item),  # item keys, in the order of the request; null for logs without items
            "scores": pa.list_(pa.float32()),
        }
    )


def outcome_schema(item: pa.DataType) -> pa.Schema:
    """Return the columns of the outcome log: one row per shown item whose outcome is known."""
    return pa.schema(
        {
            "time": pa.timestamp("us", "UTC"),
            "request_id": pa.string(),
            "item": item,  # null for logs without items
            "row": pa.int32(),  # its row in the request
            "label": pa.int8(),
        }
    )


PART: Final = "part-{number:06d}.parquet"
"""Name of a flushed file; a file under this name is whole."""


def item_type(data: Data) -> pa.DataType:
    """Return the type of the item keys of a log."""
    return pa.string() if data.item is not None and data.by_name[data.item].type == "string" else pa.int64()
