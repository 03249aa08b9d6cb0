"""Reads the inputs of a request into typed columns, or raises an error that names the first mistake."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, cast

import numpy as np
import polars as pl

from shortlist.contracts import Columns, did_you_mean
from shortlist.data.reading.clock import time_limits
from shortlist.features.values.derived_columns import DerivedColumn
from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.server.features.columns import Codes, Column, Ragged, TextCodes
from shortlist.serving.server.features.feature_requirements import FeatureRequirements
from shortlist.serving.server.prediction_log.logged_columns import SentValues
from shortlist.serving.server.request_inputs.input_types import (
    accepted_datatypes,
    check_times,
    describe_datatypes,
    finite_numbers,
    parse_day,
    parse_hex,
    parse_texts,
    preferred_datatype,
    request_times,
)
from shortlist.serving.server.requests.request_errors import BadRequestError
from shortlist.serving.server.requests.tensors import Tensor
from shortlist.spec.data import Column as Declaration
from shortlist.spec.data import Data, LogFiles, null_texts
from shortlist.spec.serving import Limits

Key = Sequence[str | None] | Codes

_TIME: Final = Declaration(name="event_time_", type="integer")
_MAX_EVENTS: Final = 1_000
"""Most events of a list in a request, equal to the most events of a sequence."""
_MATRICES: Final = ("tags", "vector")
_EMPTY_TEXTS: Final = null_texts(())


@dataclass(frozen=True)
class Inputs:
    """The rows of a request, column by column."""

    rows: int
    columns: Mapping[str, Column]
    """Columns that the model needs, and `event_time`; each of one row or of all."""
    keys: Mapping[str, Key]
    """Values of the user and item columns, if sent: texts, or integers with NO_CODE for null."""
    sent: Mapping[str, SentValues]
    """All values that were sent; the log reads them after the response, so they must not be changed in place."""
    typed: Mapping[str, Column]
    """All values that were sent, as columns."""

    @property
    def digest(self) -> str:
        """Digest of all values that were sent, in hexadecimal digits."""
        return _digest(self.typed)

    def as_of_receipt(self, received: int) -> Inputs:
        """Return the inputs with every time after the receipt set to it, because clients must not set the clock.

        Args:
            received: Microseconds since 1970-01-01 UTC, by the server's clock.
        """
        times = np.minimum(cast(Codes, self.columns[Columns.TIME]), received)
        return replace(self, columns={**self.columns, Columns.TIME: times})


@dataclass(frozen=True)
class InputSpec:
    """Name, datatype and shape of an input that a model accepts."""

    name: str
    datatype: str
    """Preferred datatype; see `accepted_datatypes` for others."""
    shape: tuple[int, ...]
    optional: bool


class InputReader:
    """Validates the inputs of requests to one model and converts them to columns."""

    def __init__(
        self,
        requirements: FeatureRequirements,
        widths: Mapping[str, int],
        max_rows: int,
        limits: Limits | None = None,
        passes_over: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Prepare.

        Args:
            requirements: Columns that the model reads.
            widths: Widths of the vectors that it reads, by column.
            max_rows: Most rows of a request.
            limits: Limits of texts and tags; None for no limits, used for rows of the log.
            passes_over: Whether an input that this version does not know is left out, because another version on the
                port knows it; by default none is.
        """
        self._requirements = requirements
        self._data = requirements.declared.data
        self._widths = widths
        self._max_rows = max_rows
        self._limits = limits
        self._passes_over = passes_over
        self._texts = TextCodes()
        source = self._data.source
        self._nulls = null_texts(source.null_values if isinstance(source, LogFiles) else ())
        low, high = time_limits(self._data.clock)
        self._time_limits = int(low.timestamp()) * 1_000_000, int(high.timestamp()) * 1_000_000
        request_columns = [
            column for column in self._data.columns if column.known == "before" and column.name != self._data.label
        ]
        self._accepted_columns = {column.name: column for column in request_columns} | {Columns.TIME: _TIME}

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """Inputs that the model reads from a request."""
        roles = [name for name in (self._data.user, self._data.item) if name is not None]
        names = dict.fromkeys(
            [*roles, *(name for name in self._accepted_columns if name in self._columns_read), Columns.TIME]
        )
        return tuple(
            InputSpec(
                name,
                preferred_datatype(self._accepted_columns[name]),
                self._shape(name),
                optional=name != self._required,
            )
            for name in names
        )

    @cached_property
    def context_columns(self) -> tuple[str, ...]:
        """Columns besides user, item and time that the model reads from a request; lists that are stored are none."""
        stored_lists = {name for joined in self._requirements.joined_lists for name in joined.sent_columns}
        others = {self._data.user, self._data.item, Columns.TIME, *stored_lists}
        return tuple(name for name in self._accepted_columns if name in self._columns_read and name not in others)

    @property
    def histories(self) -> frozenset[str]:
        """Columns in which a request may send a list of items, newest first, in place of the stored list."""
        return frozenset(
            joined_list.sent
            for joined_list in self._requirements.joined_lists
            if joined_list.sent and joined_list.column == self._data.item
        )

    @property
    def _columns_read(self) -> frozenset[str]:
        """Columns of a request that the model reads, or derives columns from."""
        return frozenset(
            (*self._requirements.columns, *(column.source for column in self._requirements.derived_columns))
        )

    @property
    def _required(self) -> str | None:
        item = self._data.item
        return item if item in self._requirements.columns else None

    def read(self, tensors: Sequence[Tensor], now: int) -> Inputs:
        """Return the columns of a request.

        Args:
            tensors: Its inputs.
            now: Current time in microseconds since 1970-01-01 UTC.

        Raises:
            BadRequestError: An input is invalid; the message names the first one.
        """
        sent: dict[str, Tensor] = {}
        for tensor in tensors:
            if not self.check_name(tensor.name, self.accepted_names):
                continue
            if tensor.name in sent:
                raise BadRequestError(f"input '{tensor.name}' is given twice; wanted once")
            sent[tensor.name] = self._without_null_texts(self._accepted_columns[tensor.name], tensor)
        if self._required is not None and self._required not in sent:
            raise BadRequestError(f"inputs: got {sorted(sent) or 'none'}; wanted '{self._required}' among them")
        if not sent:
            raise BadRequestError(f"inputs: got none; wanted at least one of {', '.join(self._accepted_columns)}")
        rows = self._row_count(sent)
        columns = {name: self._column(self._accepted_columns[name], tensor) for name, tensor in sent.items()}
        sent_values = {name: self._as_sent(tensor, columns[name]) for name, tensor in sent.items()}
        keys = {name: cast(Key, sent_values[name]) for name in _roles(self._data) if name in sent_values}
        model_columns = {
            name: columns[name] if name in columns else self._null(name) for name in self._requirements.columns
        }
        for derived in self._requirements.derived_columns:
            texts = cast(Sequence[str | None], sent[derived.source].data) if derived.source in sent else [None]
            model_columns[derived.row_column(self._requirements.declared)] = derive_column(derived, texts)
        self._check_histories(model_columns)
        check_times(columns.get(Columns.TIME), self._time_limits)
        model_columns[Columns.TIME] = request_times(columns.get(Columns.TIME), now)
        return Inputs(rows, model_columns, keys, sent_values, columns)

    def with_rows(self, inputs: Inputs, tensor: Tensor) -> Inputs:
        """Return the inputs of one row as the inputs of several rows that differ in one column.

        Args:
            inputs: Inputs of one row.
            tensor: Replaces the input of the same name; shape (rows,), at most `max_rows`.

        Raises:
            BadRequestError: The lists of all rows are too long.
        """
        name, rows = tensor.name, tensor.shape[0]
        if self._limits is not None:
            self._check_tags(
                {column_name: sent.shape[1] for column_name, sent in inputs.sent.items() if isinstance(sent, Tensor)},
                rows,
            )
        cleaned_tensor = self._without_null_texts(self._accepted_columns[name], tensor)
        column = self._column(self._accepted_columns[name], cleaned_tensor)
        sent_values = self._as_sent(cleaned_tensor, column)
        columns = {**inputs.columns, name: column} if name in inputs.columns else dict(inputs.columns)
        for derived in self._requirements.derived_columns:
            if derived.source == name:
                columns[derived.row_column(self._requirements.declared)] = derive_column(
                    derived, cast(Sequence[str | None], cleaned_tensor.data)
                )
        keys = {**inputs.keys, name: cast(Key, sent_values)} if name in inputs.keys else inputs.keys
        return Inputs(rows, columns, keys, {**inputs.sent, name: sent_values}, {**inputs.typed, name: column})

    def values(self, declared: Declaration, tensor: Tensor) -> list[Any]:
        """Return the non-null values of a tensor that is not a column of the request's rows.

        Raises:
            BadRequestError: A value is invalid; the message names the first one.
        """
        cleaned_tensor = self._without_null_texts(declared, tensor)
        column = cast(Codes, self._column(declared, cleaned_tensor))
        values = cleaned_tensor.data if declared.type == "string" else column.tolist()
        return [value for value in values if value is not None and value != NO_CODE]

    def _check_histories(self, columns: Mapping[str, Column]) -> None:
        """Check the length of sent lists of events."""
        for joined in self._requirements.joined_lists:
            for name in joined.sent_columns:
                longest = int(cast(Ragged, columns[name]).lengths.max(initial=0))
                if longest > _MAX_EVENTS:
                    raise BadRequestError(f"input '{name}': got {longest} events; wanted at most {_MAX_EVENTS}")

    def _without_null_texts(self, declared: Declaration, tensor: Tensor) -> Tensor:
        """Return a tensor with None for every text that means null; in tags and vectors only the empty text does.

        Raises:
            BadRequestError: A text is too long.
        """
        if not isinstance(tensor.data, list):
            return tensor
        if self._limits is not None:
            longest = max((len(text) for text in tensor.data if text is not None), default=0)
            if longest > self._limits.max_text_length:
                raise BadRequestError(
                    f"input '{tensor.name}': got a text of {longest} characters; wanted at most"
                    f" {self._limits.max_text_length}"
                )
        nulls = _EMPTY_TEXTS if declared.type in _MATRICES else self._nulls
        return replace(tensor, data=[None if text in nulls else text for text in tensor.data])

    @property
    def accepted_names(self) -> tuple[str, ...]:
        """Names of all columns that a request may contain, whether the model reads them or not."""
        return tuple(self._accepted_columns)

    def check_name(self, name: str, accepted_names: Sequence[str]) -> bool:
        """Return whether an input is read; False: it is passed over, because another version knows it.

        Args:
            name: Name of the input.
            accepted_names: Names that the message lists.

        Raises:
            BadRequestError: It may not; the message says why, or which inputs it may contain.
        """
        if name in accepted_names:
            return True
        if self._passes_over(name):
            return False
        log_columns = {column.name for column in self._data.columns}
        if name in log_columns:
            raise BadRequestError(f"input '{name}' is known only after the impression; leave it out")
        for table in self._data.side_tables:
            if name in {column.name for column in table.columns}:
                raise BadRequestError(f"input '{name}' is looked up in side table '{table.name}'; leave it out")
        raise BadRequestError(
            f"no input '{name}'{did_you_mean(name, accepted_names)}; wanted {', '.join(accepted_names)}"
        )

    def _row_count(self, sent: Mapping[str, Tensor]) -> int:
        lengths = {name: tensor.shape[0] for name, tensor in sent.items()}
        rows = next((length for length in lengths.values() if length != 1), 1)
        for name, length in lengths.items():
            if length not in (1, rows):
                longest = next(other_name for other_name, other_length in lengths.items() if other_length == rows)
                raise BadRequestError(f"input '{name}': got {length} rows; wanted 1, or {rows} as '{longest}' has")
        if rows > self._max_rows:
            raise BadRequestError(f"inputs: got {rows} rows; wanted at most {self._max_rows}")
        for name, tensor in sent.items():
            dimensions = 2 if self._accepted_columns[name].type in _MATRICES else 1
            if len(tensor.shape) != dimensions:
                form = "[rows, values]" if dimensions == 2 else "[rows]"
                raise BadRequestError(f"input '{name}': got shape {list(tensor.shape)}; wanted {form}")
        if self._limits is not None:
            self._check_tags(
                {
                    column_name: tags_tensor.shape[1]
                    for column_name, tags_tensor in sent.items()
                    if self._accepted_columns[column_name].type == "tags"
                },
                rows,
            )
        return rows

    def _check_tags(self, widths: Mapping[str, int], rows: int) -> None:
        assert self._limits is not None
        for name, width in widths.items():
            if width > self._limits.max_tags:
                raise BadRequestError(
                    f"input '{name}': got {width} values per row; wanted at most {self._limits.max_tags}"
                    " (serving.limits.max_tags)"
                )
        if (total := rows * sum(widths.values())) > self._limits.max_tag_values:
            raise BadRequestError(
                f"inputs {', '.join(widths)}: got {total} values in {rows} rows; wanted at most"
                f" {self._limits.max_tag_values} (serving.limits.max_tag_values)"
            )

    def _column(self, declared: Declaration, tensor: Tensor) -> Column:
        if tensor.datatype not in accepted_datatypes(declared):
            raise BadRequestError(
                f"input '{tensor.name}': got datatype {tensor.datatype}; wanted {describe_datatypes(declared)}"
                f" for a column of type {declared.type}"
            )
        values = tensor.data
        # A 64-bit identifier may become negative; another number may not.
        if tensor.datatype == "UINT64" and declared.type != "hex" and _is_above_signed(values):
            raise BadRequestError(f"input '{tensor.name}': a value is above {2**63 - 1}")
        match declared.type:
            case "number":
                return finite_numbers(values)
            case "vector":
                return self._vectors(tensor)
            case "tags":
                return Ragged.from_matrix(self._codes(values).reshape(tensor.shape))
            case "hex" if isinstance(values, list):
                return parse_texts(values, parse_hex, tensor.name, "at most 16 hexadecimal digits")
            case "date" if isinstance(values, list):
                return parse_texts(values, parse_day, tensor.name, "ISO dates, such as 2026-01-31")
            case _:
                return self._codes(values)

    def _codes(self, values: Any) -> Codes:
        return self._texts.encode(values) if isinstance(values, list) else cast(Codes, values)

    def _vectors(self, tensor: Tensor) -> Column:
        width = self._widths.get(tensor.name, tensor.shape[1])
        if tensor.shape[1] != width:
            raise BadRequestError(f"input '{tensor.name}': got vectors of {tensor.shape[1]} numbers; wanted {width}")
        with np.errstate(over="ignore"):  # infinite: not finite, as such
            matrix = cast(Any, tensor.data).reshape(tensor.shape).astype(np.float32)
        matrix[~np.isfinite(matrix).all(axis=1)] = 0.0
        return cast(Column, matrix)

    def _as_sent(self, tensor: Tensor, column: Column) -> SentValues:
        match self._accepted_columns[tensor.name].type:
            case "string":
                return cast(Sequence[str | None], tensor.data)
            case "tags":
                return tensor
            case _:
                return column

    def _null(self, name: str) -> Column:
        match self._accepted_columns[name].type if name in self._accepted_columns else "integer":
            case "number":
                return np.full(1, np.nan)
            case "tags":
                return Ragged.empty(1)
            case "vector":
                return np.zeros((1, self._widths[name]), np.float32)
            case _:
                return np.full(1, NO_CODE, np.int64)

    def _shape(self, name: str) -> tuple[int, ...]:
        if self._accepted_columns[name].type == "vector":
            return -1, self._widths[name]
        return (-1, -1) if self._accepted_columns[name].type == "tags" else (-1,)


def derive_column(column: DerivedColumn, texts: Sequence[str | None] | pl.Series) -> Column:
    """Return a derived column for texts of a request: numbers, NaN for null, or lists of integers."""
    values = column.values(pl.Series(column.source, texts, dtype=pl.String))
    if column.form == "list":
        return Ragged.from_series(values)
    return cast(Column, values.fill_null(np.nan).to_numpy())


def _is_above_signed(values: Any) -> bool:
    return bool(((values < 0) & (values != NO_CODE)).any())


def _roles(data: Data) -> tuple[str, ...]:
    return tuple(name for name in (data.user, data.item) if name is not None)


def _digest(columns: Mapping[str, Column]) -> str:
    total = hashlib.blake2b(digest_size=8)
    for name in sorted(columns):
        column = columns[name]
        parts = (column.values, column.lengths) if isinstance(column, Ragged) else (column,)
        total.update(f"{name}\0".encode())
        for part in parts:
            total.update(part.tobytes())
    return total.hexdigest()
