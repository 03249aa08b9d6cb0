"""Requests of the prediction log that keep their feature values, as rows of the log and as tensors."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from monitoring.windows.answered import ROWS
from monitoring.windows.known_columns import empty_as_null
from monitoring.windows.live_rows import Unfold
from shortlist.contracts import Columns
from shortlist.features.columns import DeclaredColumns
from shortlist.features.open_counts import open_places
from shortlist.features.plan import Plan
from shortlist.features.slates import SLATE
from shortlist.recommending.candidate_columns import type_of
from shortlist.serving.export.encoding import padded
from shortlist.serving.export.signature import CODES, NO_CODE, NUMBERS, Signature
from shortlist.serving.log.logs import FEATURE_COLUMNS, logged_inputs, logged_name

Tensors = dict[str, npt.NDArray[Any]]

COUNTED_UNTIL: Final = "served:counted_until"
_NUMBERS, _CODES, _LISTS, _VECTORS = (f"served:{name}" for name in ("numbers", "codes", "lists", "vectors"))


def sampled(requests: pl.DataFrame) -> pl.DataFrame:
    """Return the requests of a part of the prediction log that keep their feature values."""
    return requests.filter(pl.any_horizontal(pl.col(name).is_not_null() for name in FEATURE_COLUMNS))


def readable(requests: pl.DataFrame, signature: Signature) -> pl.DataFrame:
    """Return the requests whose feature values are those of a signature: as many of each row."""
    rows = pl.col(ROWS)
    wanted = (
        (_NUMBERS, len(signature.numbers)), (_CODES, len(signature.codes)), (_LISTS, len(signature.lists)),
        (_VECTORS, sum(each.width for each in signature.vectors)),
    )  # fmt: skip
    return requests.filter(pl.col(name).list.len().fill_null(0) == rows * each for name, each in wanted)


def logged_tensors(requests: pl.DataFrame, signature: Signature) -> Tensors:
    """Return what the model read, rows of one request after those of another.

    Args:
        requests: What `readable` gave.
        signature: Of the model.
    """
    rows = int(requests[ROWS].sum())
    tensors: Tensors = {}
    if signature.numbers:
        numbers = _flat(requests[_NUMBERS]).fill_null(float("nan")).to_numpy()
        tensors[NUMBERS] = numbers.reshape(rows, len(signature.numbers))
    if signature.codes:
        tensors[CODES] = _flat(requests[_CODES]).fill_null(NO_CODE).to_numpy().reshape(rows, len(signature.codes))
    places = _places(requests, len(signature.lists))
    lists = _flat(requests[_LISTS])
    for number, each in enumerate(signature.lists):
        own = lists.gather(places(number))
        lengths = own.list.len().fill_null(0).to_numpy()
        tensors[each.tensor] = padded(_flat(own).to_numpy(), lengths)
    vectors, start = _flat(requests[_VECTORS]).to_numpy(), 0
    bounds = _request_bounds(requests, sum(vector.width for vector in signature.vectors))
    for vector in signature.vectors:
        parts = [vectors[at + start * count : at + (start + vector.width) * count] for at, count in bounds]
        tensors[vector.tensor] = np.concatenate([np.zeros(0, np.float32), *parts]).reshape(rows, vector.width)
        start += vector.width
    return tensors


def log_rows(requests: pl.DataFrame, declared: DeclaredColumns) -> pl.DataFrame:
    """Return the requests as rows of the valid log, each request a slate; vectors are not in the prediction log.

    Args:
        requests: Columns of the prediction log, and rows.
        declared: The declaration.
    """
    data, lengths = declared.data, requests[ROWS].to_numpy()
    places = np.repeat(np.arange(requests.height), lengths)
    row = np.arange(len(places)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    unfold = Unfold(places, row, lengths[places])
    times = unfold(requests[Columns.TIME]).fill_null(requests["time"][places]).alias(Columns.TIME)
    columns = [
        unfold(requests[logged_name(name)]).cast(type_of(column)).alias(name)
        for name, column in logged_inputs(data).items()
    ]
    if data.item is not None:
        columns.append(unfold(requests["items"]).cast(type_of(data.by_name[data.item])).alias(data.item))
    day = times.dt.convert_time_zone(declared.timezone).dt.date().alias(Columns.DAY)
    return empty_as_null(pl.DataFrame([times, day, pl.Series(SLATE, places, dtype=pl.Int64), *columns]))


def without_sent_vectors(signature: Signature, declared: DeclaredColumns) -> Signature:
    """Return a signature without the vectors that clients send: the prediction log does not keep them."""
    sent = {column.name for column in declared.data.columns}
    return signature.model_copy(update={"vectors": tuple(one for one in signature.vectors if one.place not in sent)})


def without_streamed(signature: Signature, plan: Plan) -> Signature:
    """Return a signature without what servers count or list as it arrives: a sample of requests cannot say it."""
    live = (one for one in plan.joined if one.opened is not None)
    places = {*open_places(plan.streaming), *(one.place(name) for one in live for name in (*one.lists, *one.vectors))}
    return signature.model_copy(
        update={
            "numbers": tuple(one for one in signature.numbers if one not in places),
            "lists": tuple(one for one in signature.lists if one.place not in places),
            "vectors": tuple(one for one in signature.vectors if one.place not in places),
        }
    )


def _flat(lists: pl.Series) -> pl.Series:
    return lists.explode(empty_as_null=False, keep_nulls=False)


def _places(requests: pl.DataFrame, inputs: int) -> Any:
    """Return a function from a list input to where its rows are among the lists of all requests."""
    counts = requests[ROWS].to_numpy()
    starts = np.cumsum(counts * inputs) - counts * inputs

    def of(number: int) -> pl.Series:
        at = [start + number * count + np.arange(count) for start, count in zip(starts, counts, strict=True)]
        return pl.Series(np.concatenate([np.zeros(0, np.int64), *at]), dtype=pl.Int64)

    return of


def _request_bounds(requests: pl.DataFrame, width: int) -> list[tuple[int, int]]:
    """Return where each request's vectors begin, and its rows."""
    counts = requests[ROWS].to_numpy()
    starts = np.cumsum(counts * width) - counts * width
    return list(zip(starts.tolist(), counts.tolist(), strict=True))
