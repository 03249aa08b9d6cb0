"""Reads requests for recommendations: the user, the number of items, and the context."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.server.prediction_log.logged_columns import SentValues
from shortlist.serving.server.request_inputs.input_reader import InputReader, Inputs, InputSpec
from shortlist.serving.server.request_inputs.input_types import (
    accepted_datatypes,
    describe_datatypes,
    preferred_datatype,
)
from shortlist.serving.server.requests.request_errors import BadRequestError
from shortlist.serving.server.requests.tensors import BYTES, INTEGERS, Tensor
from shortlist.spec.data import Column, Data
from shortlist.spec.retrieval import RECENT_ITEMS, K

_MAX_RECENT_ITEMS: Final = 1_000
_EPOCH: Final = date(1970, 1, 1)


@dataclass(frozen=True)
class SlateQuery:
    """A parsed request for recommendations."""

    user: int | str | None
    k: int
    now: datetime
    context: Mapping[str, Any]
    """Sent columns of the log without the user, by name."""
    recent: list[int | str] | None
    inputs: Inputs
    """Sent columns of the log as inputs of the model, with a null item."""


class SlateRequestReader:
    """Validates requests for recommendations and converts their values.

    Args:
        reader: Reader of the model's inputs.
        data: Declared columns of the log.
        columns: Columns of the log that filters, ordering and sources read.
        item_columns: Columns of the log that candidates have of their own; requests do not send them.
    """

    def __init__(
        self, reader: InputReader, data: Data, columns: Sequence[str], item_columns: Sequence[str] = ()
    ) -> None:
        self._reader, self._data, self._columns = reader, data, columns
        assert data.item and data.user
        self._item, self._user = data.by_name[data.item], data.user
        self._of_items = {data.item, *item_columns}
        sent_names = (name for name in reader.accepted_names if name not in self._of_items)
        self._accepted_names = (K, RECENT_ITEMS, *sent_names)
        self.context_names = tuple(
            name for name in self._accepted_names if name not in {K, RECENT_ITEMS, self._user, Columns.TIME}
        )
        """Columns of the log that a request may contain beside its user."""
        is_text = self._item.type == "string"
        # A null item, in place of candidates.
        self._null_item = pl.Series([None if is_text else NO_CODE], dtype=pl.String() if is_text else pl.Int64())

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """Accepted inputs: the number of items, the user, recent items, and the context that the stages read."""
        model_inputs = {spec.name: spec for spec in self._reader.inputs if spec.name not in self._of_items}
        names = [
            name
            for name in self._columns
            if name in self._data.by_name and name not in {*self._of_items, *model_inputs}
        ]
        stage_inputs = (
            InputSpec(name, preferred_datatype(self._data.by_name[name]), (1,), optional=True) for name in names
        )
        context = [
            InputSpec(spec.name, spec.datatype, (1, *spec.shape[1:]), optional=True) for spec in model_inputs.values()
        ]
        recent = InputSpec(RECENT_ITEMS, preferred_datatype(self._item), (-1,), optional=True)
        return (InputSpec(K, "INT64", (1,), optional=False), recent, *context, *stage_inputs)

    def read(self, tensors: Sequence[Tensor], now: int) -> SlateQuery:
        """Return the parsed request.

        Args:
            tensors: Its inputs.
            now: Current time in microseconds since 1970-01-01 UTC.

        Raises:
            BadRequestError: An input is invalid; the message names the first one.
        """
        slate_tensors: dict[str, Tensor] = {}
        context = []
        for tensor in tensors:
            if tensor.name not in (K, RECENT_ITEMS):
                context += [tensor] if self._is_context(tensor) else []
            elif tensor.name in slate_tensors:
                raise BadRequestError(f"input '{tensor.name}' is given twice; wanted once")
            else:
                slate_tensors[tensor.name] = tensor
        recent = self._recent_items(slate_tensors.get(RECENT_ITEMS))
        context += self._histories(recent, {tensor.name for tensor in context})
        typed = self._reader.read([*context, self._tensor(self._null_item)], now).as_of_receipt(now)
        values = {
            name: self._to_candidate_value(name, sent) for name, sent in typed.sent.items() if name != self._item.name
        }
        moments = typed.columns[Columns.TIME]
        assert isinstance(moments, np.ndarray)
        return SlateQuery(
            user=values.pop(self._user, None),
            k=_read_k(slate_tensors.get(K)),
            now=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(moments[0])),
            context={name: value for name, value in values.items() if name != Columns.TIME},
            recent=recent,
            inputs=typed,
        )

    def _histories(self, recent: list[int | str] | None, sent: Collection[str]) -> list[Tensor]:
        """Return the recent items as the model's list columns that the request does not contain itself."""
        is_text = self._item.type == "string"
        values: Any = recent if is_text else np.array(recent or [], np.int64)
        missing_histories = sorted(self._reader.histories - set(sent)) if recent else []
        return [
            Tensor(name, BYTES if is_text else "INT64", (1, len(recent or [])), values) for name in missing_histories
        ]

    def with_items(self, query: SlateQuery, items: pl.Series, values: Mapping[str, pl.Series] | None = None) -> Inputs:
        """Return the model's inputs for some items in a request's context.

        Args:
            query: The request.
            items: Ids of the items.
            values: Columns of the log that the items have of their own, by name.

        Raises:
            BadRequestError: The context exceeds the limits for this number of items.
        """
        inputs = self._reader.with_rows(query.inputs, self._tensor(items))
        for name, column in (values or {}).items():
            inputs = self._reader.with_rows(inputs, column_tensor(self._data.by_name[name], column))
        return inputs

    def _tensor(self, items: pl.Series) -> Tensor:
        return column_tensor(self._item, items)

    def _is_context(self, tensor: Tensor) -> bool:
        """Return whether an input is part of the context; False: it is passed over. Raises `BadRequestError`."""
        if tensor.name == self._item.name:
            raise BadRequestError(
                f"input '{tensor.name}': got candidates; this model retrieves the items itself: leave it out, or"
                " request scores"
            )
        if tensor.name in self._of_items:
            raise BadRequestError(
                f"input '{tensor.name}': every candidate has its own (retrieval.item_columns); leave it out"
            )
        if not self._reader.check_name(tensor.name, self._accepted_names):
            return False
        if tensor.shape[0] != 1:
            raise BadRequestError(
                f"input '{tensor.name}': got {tensor.shape[0]} rows; wanted 1, for a request has one user"
            )
        return True

    def _to_candidate_value(self, name: str, sent: SentValues) -> Any:
        """Return a sent value in the type of the candidates' columns; None for null."""
        if isinstance(sent, Tensor):
            values = sent.data if isinstance(sent.data, list) else sent.data.tolist()
            return [tag for tag in values if tag is not None and tag != NO_CODE]
        value: Any = sent[0]  # type: ignore[index] # of one row
        if isinstance(value, np.ndarray):
            return value.tolist()
        value = value.item() if isinstance(value, np.generic) else value
        if value is None or value == NO_CODE or value != value:  # NaN is null  # noqa: PLR0124
            return None
        declared: Column | None = self._data.by_name.get(name)
        return _to_date(name, value) if declared is not None and declared.type == "date" else value

    def _recent_items(self, tensor: Tensor | None) -> list[int | str] | None:
        if tensor is None:
            return None
        if tensor.datatype not in accepted_datatypes(self._item) or len(tensor.shape) != 1:
            raise BadRequestError(
                f"input '{RECENT_ITEMS}': got {tensor.datatype} of shape {list(tensor.shape)}; wanted"
                f" {describe_datatypes(self._item)} of shape [items]"
            )
        if len(tensor.data) > _MAX_RECENT_ITEMS:
            raise BadRequestError(
                f"input '{RECENT_ITEMS}': got {len(tensor.data)} items; wanted at most {_MAX_RECENT_ITEMS}"
            )
        return self._reader.values(self._item, tensor)


def column_tensor(column: Column, values: pl.Series) -> Tensor:
    """Return values of a column of type integer, hex, number or string as an input."""
    if column.type == "string":
        return Tensor(column.name, BYTES, (len(values),), values.to_list())
    if column.type == "number":
        return Tensor(column.name, "FP64", (len(values),), values.cast(pl.Float64).fill_null(float("nan")).to_numpy())
    return Tensor(column.name, "INT64", (len(values),), _codes(values))


def _codes(items: pl.Series) -> np.ndarray:
    if items.dtype == pl.Int64() and not items.null_count():  # a cast would wait for Polars
        return items.to_numpy()
    return items.cast(pl.Int64).fill_null(NO_CODE).to_numpy()


def _read_k(tensor: Tensor | None) -> int:
    if tensor is None:
        raise BadRequestError(f"input '{K}' is missing; wanted the number of items to show")
    if tensor.datatype not in INTEGERS or tensor.shape != (1,):
        raise BadRequestError(
            f"input '{K}': got {tensor.datatype} of shape {list(tensor.shape)}; wanted one whole number, shape [1]"
        )
    return int(tensor.data[0])  # type: ignore[arg-type] # of an integer type


def _to_date(name: str, days: int) -> date:
    try:
        return _EPOCH + timedelta(days=days)
    except OverflowError:
        raise BadRequestError(
            f"input '{name}': got {days} days since 1970; wanted a date up to the year 9999"
        ) from None
