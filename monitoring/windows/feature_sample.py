"""The sampled requests of the prediction log that hold feature values, as rows of the log and as tensors."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from monitoring.windows.answered_requests import ROWS
from monitoring.windows.known_columns import empty_as_null
from monitoring.windows.live_rows import ListUnfolder
from shortlist.contracts import Columns
from shortlist.features.declared.plan import Plan
from shortlist.features.declared.slates import SLATE
from shortlist.features.live.open_counts import open_count_columns
from shortlist.features.values.columns import DeclaredColumns
from shortlist.serving.export.encoding import pad_lists
from shortlist.serving.export.signature import CODES, NO_CODE, NUMBERS, Signature
from shortlist.serving.log.logs import FEATURE_COLUMNS, logged_inputs, logged_name

Tensors = dict[str, npt.NDArray[Any]]

COUNTED_UNTIL: Final = "served:counted_until"
_NUMBERS, _CODES, _LISTS, _VECTORS = (f"served:{name}" for name in ("numbers", "codes", "lists", "vectors"))


def select_sampled(requests: pl.DataFrame) -> pl.DataFrame:
    """Return the requests of a part of the prediction log that hold feature values."""
    return requests.filter(pl.any_horizontal(pl.col(name).is_not_null() for name in FEATURE_COLUMNS))


def select_readable(requests: pl.DataFrame, signature: Signature) -> pl.DataFrame:
    """Return the requests whose feature values fit a signature: as many per row as it has inputs."""
    rows = pl.col(ROWS)
    values_per_row = (
        (_NUMBERS, len(signature.numbers)), (_CODES, len(signature.codes)), (_LISTS, len(signature.lists)),
        (_VECTORS, sum(vector.width for vector in signature.vectors)),
    )  # fmt: skip
    return requests.filter(pl.col(name).list.len().fill_null(0) == rows * count for name, count in values_per_row)


def logged_tensors(requests: pl.DataFrame, signature: Signature) -> Tensors:
    """Return the tensors that the model read, the rows of all requests concatenated.

    Args:
        requests: Requests as `select_readable` returns them.
        signature: The model's signature.
    """
    rows = int(requests[ROWS].sum())
    tensors: Tensors = {}
    if signature.numbers:
        numbers = _flat(requests[_NUMBERS]).fill_null(float("nan")).to_numpy()
        tensors[NUMBERS] = numbers.reshape(rows, len(signature.numbers))
    if signature.codes:
        tensors[CODES] = _flat(requests[_CODES]).fill_null(NO_CODE).to_numpy().reshape(rows, len(signature.codes))
    positions = _places(requests, len(signature.lists))
    lists = _flat(requests[_LISTS])
    for number, list_input in enumerate(signature.lists):
        input_lists = lists.gather(positions(number))
        lengths = input_lists.list.len().fill_null(0).to_numpy()
        tensors[list_input.tensor] = pad_lists(_flat(input_lists).to_numpy(), lengths)
    vectors, start = _flat(requests[_VECTORS]).to_numpy(), 0
    bounds = _request_bounds(requests, sum(vector.width for vector in signature.vectors))
    for vector in signature.vectors:
        slices = [vectors[offset + start * count : offset + (start + vector.width) * count] for offset, count in bounds]
        tensors[vector.tensor] = np.concatenate([np.zeros(0, np.float32), *slices]).reshape(rows, vector.width)
        start += vector.width
    return tensors


def log_rows(requests: pl.DataFrame, declared: DeclaredColumns) -> pl.DataFrame:
    """Return the requests as rows of the valid log, each request a slate; vectors are not in the prediction log.

    Args:
        requests: Requests with the columns of the prediction log, and rows.
        declared: The declared columns.
    """
    data, lengths = declared.data, requests[ROWS].to_numpy()
    request_index = np.repeat(np.arange(requests.height), lengths)
    row = np.arange(len(request_index)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    unfold = ListUnfolder(request_index, row, lengths[request_index])
    answered = requests["time"][request_index]
    sent_times = unfold(requests[Columns.TIME]).fill_null(answered).alias(Columns.TIME)
    # Servers score rows that are dated ahead as of the receipt of their request.
    times = sent_times.zip_with(sent_times <= answered, answered)
    columns = [
        unfold(requests[logged_name(name)]).cast(column.polars_type).alias(name)
        for name, column in logged_inputs(data).items()
    ]
    if data.item is not None:
        columns.append(unfold(requests["items"]).cast(data.by_name[data.item].polars_type).alias(data.item))
    day = times.dt.convert_time_zone(declared.timezone).dt.date().alias(Columns.DAY)
    return empty_as_null(pl.DataFrame([times, day, pl.Series(SLATE, request_index, dtype=pl.Int64), *columns]))


def drop_sent_vectors(signature: Signature, declared: DeclaredColumns) -> Signature:
    """Return a signature without the vectors that clients send, which the prediction log does not keep."""
    sent = {column.name for column in declared.data.columns}
    return signature.model_copy(
        update={"vectors": tuple(vector for vector in signature.vectors if vector.place not in sent)}
    )


def drop_streamed_inputs(signature: Signature, plan: Plan) -> Signature:
    """Return a signature without inputs that servers count or list as events arrive, which no sample can reproduce."""
    open_lists = (joined_list for joined_list in plan.joined_lists if joined_list.open_list is not None)
    places = {
        *open_count_columns(plan.streaming),
        *(open_list.row_column(name) for open_list in open_lists for name in (*open_list.lists, *open_list.vectors)),
    }
    return signature.model_copy(
        update={
            "numbers": tuple(column for column in signature.numbers if column not in places),
            "lists": tuple(list_input for list_input in signature.lists if list_input.place not in places),
            "vectors": tuple(vector for vector in signature.vectors if vector.place not in places),
        }
    )


def _flat(lists: pl.Series) -> pl.Series:
    return lists.explode(empty_as_null=False, keep_nulls=False)


def _places(requests: pl.DataFrame, inputs: int) -> Any:
    """Return a function from the number of a list input to the positions of its rows in the lists of all requests."""
    counts = requests[ROWS].to_numpy()
    starts = np.cumsum(counts * inputs) - counts * inputs

    def of(number: int) -> pl.Series:
        at = [start + number * count + np.arange(count) for start, count in zip(starts, counts, strict=True)]
        return pl.Series(np.concatenate([np.zeros(0, np.int64), *at]), dtype=pl.Int64)

    return of


def _request_bounds(requests: pl.DataFrame, width: int) -> list[tuple[int, int]]:
    """Return the offset of each request's vectors, and its number of rows."""
    counts = requests[ROWS].to_numpy()
    starts = np.cumsum(counts * width) - counts * width
    return list(zip(starts.tolist(), counts.tolist(), strict=True))
