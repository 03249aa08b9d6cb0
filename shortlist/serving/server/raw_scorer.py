"""The pyfunc model that MLflow loads: scores tables of raw columns in one process with the exported graph."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.contracts import Columns, Files, ShortlistError
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.serving.export.onnx_session import create_session
from shortlist.serving.export.signature import FOLDER, NO_CODE, SCORE, Signature
from shortlist.serving.server.features.snapshot import Snapshot, load_with_users
from shortlist.serving.server.features.tensor_assembler import TensorAssembler
from shortlist.serving.server.request_inputs.input_reader import InputReader, InputSpec
from shortlist.serving.server.requests.tensors import BYTES, FLOATS, Tensor, TensorHead, from_values
from shortlist.storage.artefacts import verify_manifest

MODEL: Final = "model"
"""Folder of the model's files, with their manifest."""
LOOKUP: Final = "lookup"
"""Folder of the views in which rows are looked up; see `shortlist.features.stored_views.scored_views`."""

_CHUNK_ROWS: Final = 4_096


class RawScorer:
    """Scores rows with the columns of a server request; looks up side tables and statistics."""

    def __init__(self, model: Path, views: ViewIndex) -> None:
        self._signature = Signature.read(model / FOLDER)
        self._assembler = TensorAssembler(Preprocessing.load(model / Files.PREPROCESSING).plan, self._signature)
        self._views = views
        self._session = create_session(model / FOLDER)
        self._snapshots: dict[date, Snapshot] = {}

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the scorer of a folder that holds `model/` and `lookup/`.

        Raises:
            IntegrityError: A file is missing, or was changed after it was written.
        """
        for part in (MODEL, LOOKUP):
            verify_manifest(folder / part)
        return cls(folder / MODEL, ViewIndex.read(folder / LOOKUP))

    def predict(self, frame: Any) -> npt.NDArray[np.float32]:
        """Return the probability of the label for every row, shape (rows,).

        Every row sees the statistics of the start of its day, as training did; after the last day of the log, the
        newest ones.

        Args:
            frame: A pandas frame with columns of `raw_inputs`; missing ones are null, and a missing `event_time`
                (microseconds since 1970-01-01 UTC, or a pandas timestamp) is now.

        Raises:
            BadRequestError: A column is unknown, or its values are not of the declared type.
            ShortlistError: A row is older than the statistics of the model.
        """
        rows = len(frame)
        tensors = [_tensor(str(name), frame[name], self._datatypes) for name in frame.columns]
        scores = np.empty(rows, np.float32)
        now = time.time_ns() // 1_000
        for day, row_numbers in self._rows_by_day(tensors, rows, now):
            tables = self._snapshot(day).tables
            for chunk in np.split(row_numbers, range(_CHUNK_ROWS, row_numbers.size, _CHUNK_ROWS)):
                reader = InputReader(self._assembler.requirements, self._assembler.widths, max(1, chunk.size))
                inputs = reader.read([_take_rows(tensor, chunk) for tensor in tensors], now)
                model_inputs = self._assembler.tensors(inputs.columns, tables, inputs.rows)
                scores[chunk] = self._session.run([SCORE], dict(model_inputs))[0][:, 0]
        return scores

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """Inputs that the model accepts."""
        return InputReader(self._assembler.requirements, self._assembler.widths, 1).inputs

    @property
    def _datatypes(self) -> dict[str, str]:
        return {model_input.name: model_input.datatype for model_input in self.inputs}

    def _rows_by_day(self, tensors: list[Tensor], rows: int, now: int) -> Iterator[tuple[date, npt.NDArray[np.intp]]]:
        """Yield each day of the rows, in the log's timezone, with the numbers of its rows."""
        sent_times = next((tensor.data for tensor in tensors if tensor.name == Columns.TIME), None)
        moments = np.full(rows, now) if sent_times is None else np.asarray(sent_times, np.int64)
        moments = np.where(moments == NO_CODE, now, moments)
        local = pl.Series(moments).cast(pl.Datetime("us", "UTC")).dt.convert_time_zone(self._views.timezone)
        grouped = pl.DataFrame({"day": local.dt.date(), "place": np.arange(rows)}).group_by("day").agg("place")
        for day, row_numbers in grouped.sort("day").iter_rows():
            if day < self._views.first_day:
                raise ShortlistError(
                    f"input '{Columns.TIME}': got a row of {day}; this model keeps statistics from"
                    f" {self._views.first_day} on. Send later rows, or leave {Columns.TIME} out"
                )
            yield day, np.array(row_numbers)

    def _snapshot(self, day: date) -> Snapshot:
        if day not in self._snapshots:
            self._snapshots = {day: load_with_users(self._assembler, self._views, self._views.start_of(day))}
        return self._snapshots[day]


def raw_inputs(model: Path) -> tuple[tuple[InputSpec, ...], frozenset[str]]:
    """Return the columns that `RawScorer.predict` accepts, and the names of the identifiers among them."""
    plan = Preprocessing.load(model / Files.PREPROCESSING).plan
    assembler = TensorAssembler(plan, Signature.read(model / FOLDER))
    data = plan.declared.data
    keys = frozenset(name for name in (data.user, data.item, Columns.TIME) if name is not None)
    return InputReader(assembler.requirements, assembler.widths, 1).inputs, keys


def _tensor(name: str, column: Any, datatypes: dict[str, str]) -> Tensor:
    """Return a column of a pandas frame as a tensor of a request."""
    if name not in datatypes:  # `InputReader` refuses it by its name
        return Tensor(name, BYTES, (len(column),), [""] * len(column))
    datatype = datatypes[name]
    if column.dtype.kind == "M":  # pandas keeps a moment with a timezone as that of UTC
        moments = column.to_numpy("datetime64[us]")
        return Tensor(name, "INT64", (len(column),), np.where(np.isnat(moments), NO_CODE, moments.astype(np.int64)))
    if column.dtype.kind in "iu" and datatype not in (BYTES, *FLOATS):
        return Tensor(name, "INT64", (len(column),), column.to_numpy().astype(np.int64))
    if column.dtype.kind == "f" and datatype not in (BYTES, *FLOATS):  # integers, some of them missing
        numbers, missing = column.to_numpy().astype(np.float64), column.isna().to_numpy()
        if (missing | (numbers == np.floor(numbers))).all():
            codes = np.where(missing, NO_CODE, np.nan_to_num(numbers).astype(np.int64))
            return Tensor(name, "INT64", (len(column),), codes)
    if column.dtype.kind in "iuf" and datatype in FLOATS:
        return Tensor(name, "FP64", (len(column),), column.to_numpy().astype(np.float64))
    return _tensor_of_values(name, datatype, [_to_python(value) for value in column])


def _tensor_of_values(name: str, datatype: str, values: list[Any]) -> Tensor:
    """Return a column of Python's values, or of lists of them, as a tensor of a request."""
    if not any(isinstance(value, list) for value in values):
        head = TensorHead(name=name, datatype=datatype, shape=[len(values)])  # type: ignore[arg-type]
        return from_values(head, values)
    width = max(len(value or []) for value in values)
    padded = [[*(value or []), *[None] * (width - len(value or []))] for value in values]
    head = TensorHead(name=name, datatype=datatype, shape=[len(values), width])  # type: ignore[arg-type]
    return from_values(head, padded)


def _to_python(value: Any) -> Any:
    """Return a value of a pandas column as a request has it: lists, Python numbers, None for null."""
    if isinstance(value, list | tuple | np.ndarray):
        return [_to_python(nested) for nested in value]
    if value is None or value != value:  # noqa: PLR0124 - NaN and NaT are not what they are
        return None
    return value.item() if isinstance(value, np.generic) else value


def _take_rows(tensor: Tensor, row_numbers: npt.NDArray[np.intp]) -> Tensor:
    """Return some rows of a tensor."""
    shape = (row_numbers.size, *tensor.shape[1:])
    if isinstance(tensor.data, list):
        width = int(np.prod(tensor.shape[1:]))
        values: Any = [
            value for row_number in row_numbers for value in tensor.data[row_number * width : (row_number + 1) * width]
        ]
        return Tensor(tensor.name, tensor.datatype, shape, values)
    return Tensor(tensor.name, tensor.datatype, shape, tensor.data.reshape(tensor.shape)[row_numbers].ravel())


def _load_pyfunc(path: str) -> RawScorer:
    """Return the scorer in the folder of a logged model; MLflow calls this by name."""
    return RawScorer.load(Path(path))
