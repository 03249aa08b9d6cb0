"""Requests for recommendations: who asks, for how many items, in which context."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import numpy as np
import polars as pl

from shortlist.contracts import Columns, did_you_mean
from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.server.input_types import accepted_by, datatype_of, words_for
from shortlist.serving.server.inputs import Input, InputReader, Inputs
from shortlist.serving.server.logged_columns import Sent
from shortlist.serving.server.request_errors import BadRequestError
from shortlist.serving.server.tensors import BYTES, INTEGERS, Tensor
from shortlist.spec.data import Column, Data
from shortlist.spec.retrieval import RECENT_ITEMS, K

_MOST_RECENT: Final = 1_000
_EPOCH: Final = date(1970, 1, 1)


@dataclass(frozen=True)
class AskedSlate:
    """What a request says."""

    user: int | str | None
    k: int
    now: datetime
    context: Mapping[str, Any]
    """Columns of the log that were sent, by name; the user is left out."""
    recent: list[int | str] | None
    inputs: Inputs
    """What was sent of the log's columns, for the model, with one item that is none."""


class SlateRequestReader:
    """Checks and types requests for recommendations.

    Args:
        reader: Of the requests to the model.
        data: The log's declaration.
        read: Columns of the log that filters, ordering and sources read.
    """

    def __init__(self, reader: InputReader, data: Data, read: Sequence[str]) -> None:
        self._reader, self._data, self._read = reader, data, read
        assert data.item and data.user
        self._item, self._user = data.by_name[data.item], data.user
        is_text = self._item.type == "string"
        # One item that is none.
        self._nothing = pl.Series([None if is_text else NO_CODE], dtype=pl.String() if is_text else pl.Int64())

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What may be sent: how many items, the user, recent items, and the context that a stage reads."""
        of_model = {each.name: each for each in self._reader.inputs if each.name != self._item.name}
        names = [name for name in self._read if name in self._data.by_name and name not in (self._item.name, *of_model)]
        more = (Input(name, datatype_of(self._data.by_name[name]), (1,), optional=True) for name in names)
        context = [Input(each.name, each.datatype, (1, *each.shape[1:]), optional=True) for each in of_model.values()]
        recent = Input(RECENT_ITEMS, datatype_of(self._item), (-1,), optional=True)
        return (Input(K, "INT64", (1,), optional=False), recent, *context, *more)

    def read(self, tensors: Sequence[Tensor], now: int) -> AskedSlate:
        """Return what a request says.

        Args:
            tensors: Its inputs.
            now: Microseconds since 1970-01-01 UTC.

        Raises:
            BadRequestError: The first thing that is wrong.
        """
        own: dict[str, Tensor] = {}
        context = []
        for tensor in tensors:
            if tensor.name not in (K, RECENT_ITEMS):
                context.append(self._checked(tensor))
            elif tensor.name in own:
                raise BadRequestError(f"input '{tensor.name}' is given twice; wanted once")
            else:
                own[tensor.name] = tensor
        recent = self._recent(own.get(RECENT_ITEMS))
        context += self._histories(recent, {tensor.name for tensor in context})
        typed = self._reader.read([*context, self._tensor(self._nothing)], now)
        values = {name: self._value(name, sent) for name, sent in typed.sent.items() if name != self._item.name}
        moments = typed.columns[Columns.TIME]
        assert isinstance(moments, np.ndarray)
        return AskedSlate(
            user=values.pop(self._user, None),
            k=_k_of(own.get(K)),
            now=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(moments[0])),
            context={name: value for name, value in values.items() if name != Columns.TIME},
            recent=recent,
            inputs=typed,
        )

    def _histories(self, recent: list[int | str] | None, sent: Collection[str]) -> list[Tensor]:
        """Return recent items as the model reads them, in the columns that the request does not bring itself."""
        is_text = self._item.type == "string"
        values: Any = recent if is_text else np.array(recent or [], np.int64)
        wanted = sorted(self._reader.histories - set(sent)) if recent else []
        return [Tensor(name, BYTES if is_text else "INT64", (1, len(recent or [])), values) for name in wanted]

    def with_items(self, asked: AskedSlate, items: pl.Series) -> Inputs:
        """Return the rows of some items in a request's context, as the model's requests have them.

        Raises:
            BadRequestError: The context is too large for so many items.
        """
        return self._reader.with_rows(asked.inputs, self._tensor(items))

    def _tensor(self, items: pl.Series) -> Tensor:
        is_text = self._item.type == "string"
        values: Any = items.to_list() if is_text else _codes(items)
        return Tensor(self._item.name, BYTES if is_text else "INT64", (len(items),), values)

    def _checked(self, tensor: Tensor) -> Tensor:
        if tensor.name == self._item.name:
            raise BadRequestError(
                f"input '{tensor.name}': got candidates; items are found here: leave it out, or ask for scores"
            )
        is_known = tensor.name in self._data.by_name or tensor.name == Columns.TIME
        if not is_known and (near := did_you_mean(tensor.name, (K, RECENT_ITEMS))):
            raise BadRequestError(f"no input '{tensor.name}'{near}")
        if tensor.shape[0] != 1:
            raise BadRequestError(
                f"input '{tensor.name}': got {tensor.shape[0]} rows; wanted 1, for a request has one user"
            )
        return tensor

    def _value(self, name: str, sent: Sent) -> Any:
        """Return a value as candidates' columns have it; None for null."""
        if isinstance(sent, Tensor):
            values = sent.data if isinstance(sent.data, list) else sent.data.tolist()
            return [one for one in values if one is not None and one != NO_CODE]
        value: Any = sent[0]  # type: ignore[index] # of one row
        if isinstance(value, np.ndarray):
            return value.tolist()
        value = value.item() if isinstance(value, np.generic) else value
        if value is None or value == NO_CODE or value != value:  # NaN is null  # noqa: PLR0124
            return None
        declared: Column | None = self._data.by_name.get(name)
        return _day(name, value) if declared is not None and declared.type == "date" else value

    def _recent(self, tensor: Tensor | None) -> list[int | str] | None:
        if tensor is None:
            return None
        if tensor.datatype not in accepted_by(self._item) or len(tensor.shape) != 1:
            raise BadRequestError(
                f"input '{RECENT_ITEMS}': got {tensor.datatype} of shape {list(tensor.shape)}; wanted"
                f" {words_for(self._item)} of shape [items]"
            )
        if len(tensor.data) > _MOST_RECENT:
            raise BadRequestError(
                f"input '{RECENT_ITEMS}': got {len(tensor.data)} items; wanted at most {_MOST_RECENT}"
            )
        return self._reader.values(self._item, tensor)


def _codes(items: pl.Series) -> np.ndarray:
    if items.dtype == pl.Int64() and not items.null_count():  # as they are: an expression waits for Polars' threads
        return items.to_numpy()
    return items.cast(pl.Int64).fill_null(NO_CODE).to_numpy()


def _k_of(tensor: Tensor | None) -> int:
    if tensor is None:
        raise BadRequestError(f"input '{K}' is missing; wanted how many items to show")
    if tensor.datatype not in INTEGERS or tensor.shape != (1,):
        raise BadRequestError(
            f"input '{K}': got {tensor.datatype} of shape {list(tensor.shape)}; wanted one whole number, shape [1]"
        )
    return int(tensor.data[0])  # type: ignore[arg-type] # of an integer type


def _day(name: str, days: int) -> date:
    try:
        return _EPOCH + timedelta(days=days)
    except OverflowError:
        raise BadRequestError(
            f"input '{name}': got {days} days since 1970; wanted a date up to the year 9999"
        ) from None
