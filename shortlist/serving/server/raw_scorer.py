"""A packed model that scores tables of raw columns in one process, by the exported graph: what MLflow loads."""

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
from shortlist.features.preprocessing import Preprocessing
from shortlist.features.view_index import ViewIndex
from shortlist.serving.export.onnx_session import session
from shortlist.serving.export.signature import FOLDER, NO_CODE, SCORE, Signature
from shortlist.serving.server.inputs import Input, InputReader
from shortlist.serving.server.snapshot import Snapshot, load_with_users
from shortlist.serving.server.tensor_assembler import TensorAssembler
from shortlist.serving.server.tensors import BYTES, FLOATS, Head, Tensor, from_values
from shortlist.storage.artefacts import verify_manifest

MODEL: Final = "model"
"""Folder of the model's own files, with their manifest."""
LOOKUP: Final = "lookup"
"""Folder, beside it, of the views that rows are looked up in; see `shortlist.features.scored_views`."""

_PIECE_ROWS: Final = 4_096


class RawScorer:
    """Scores rows that hold the columns of a request to the server; side tables and statistics are looked up."""

    def __init__(self, model: Path, views: ViewIndex) -> None:
        self._signature = Signature.read(model / FOLDER)
        self._assembler = TensorAssembler(Preprocessing.load(model / Files.PREPROCESSING).plan, self._signature)
        self._views = views
        self._session = session(model / FOLDER)
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
            frame: A pandas frame with the columns of `raw_inputs`; those that are left out are null, and `event_time`
                (microseconds since 1970-01-01 UTC, or a pandas moment) is now.

        Raises:
            BadRequestError: A column is unknown, or its values are not of the declared type.
            ShortlistError: A row is older than what the model keeps statistics of.
        """
        rows = len(frame)
        tensors = [_tensor(str(name), frame[name], self._datatypes) for name in frame.columns]
        scores = np.empty(rows, np.float32)
        now = time.time_ns() // 1_000
        for day, places in self._days(tensors, rows, now):
            tables = self._as_of(day).tables
            for piece in np.split(places, range(_PIECE_ROWS, places.size, _PIECE_ROWS)):
                reader = InputReader(self._assembler.needs, self._assembler.widths, max(1, piece.size))
                inputs = reader.read([_some(tensor, piece) for tensor in tensors], now)
                read = self._assembler.tensors(inputs.columns, tables, inputs.rows)
                scores[piece] = self._session.run([SCORE], dict(read))[0][:, 0]
        return scores

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What may be sent."""
        return InputReader(self._assembler.needs, self._assembler.widths, 1).inputs

    @property
    def _datatypes(self) -> dict[str, str]:
        return {one.name: one.datatype for one in self.inputs}

    def _days(self, tensors: list[Tensor], rows: int, now: int) -> Iterator[tuple[date, npt.NDArray[np.intp]]]:
        """Give every day of the rows, on the log's clock, and the rows' places."""
        sent = next((tensor.data for tensor in tensors if tensor.name == Columns.TIME), None)
        moments = np.full(rows, now) if sent is None else np.asarray(sent, np.int64)
        moments = np.where(moments == NO_CODE, now, moments)
        local = pl.Series(moments).cast(pl.Datetime("us", "UTC")).dt.convert_time_zone(self._views.timezone)
        grouped = pl.DataFrame({"day": local.dt.date(), "place": np.arange(rows)}).group_by("day").agg("place")
        for day, places in grouped.sort("day").iter_rows():
            if day < self._views.first_day:
                raise ShortlistError(
                    f"input '{Columns.TIME}': got a row of {day}; this model keeps statistics from"
                    f" {self._views.first_day} on. Send later rows, or leave {Columns.TIME} out"
                )
            yield day, np.array(places)

    def _as_of(self, day: date) -> Snapshot:
        if day not in self._snapshots:
            self._snapshots = {day: load_with_users(self._assembler, self._views, self._views.start_of(day))}
        return self._snapshots[day]


def raw_inputs(model: Path) -> tuple[tuple[Input, ...], frozenset[str]]:
    """Return the columns that `RawScorer.predict` takes, from an exported model's folder; and those of identifiers."""
    plan = Preprocessing.load(model / Files.PREPROCESSING).plan
    assembler = TensorAssembler(plan, Signature.read(model / FOLDER))
    data = plan.declared.data
    keys = frozenset(name for name in (data.user, data.item, Columns.TIME) if name is not None)
    return InputReader(assembler.needs, assembler.widths, 1).inputs, keys


def _tensor(name: str, column: Any, datatypes: dict[str, str]) -> Tensor:
    """Return a column of a pandas frame as a tensor of a request."""
    if name not in datatypes:  # refused by its name, whatever it holds
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
    return _tensor_of_values(name, datatype, [_plain(value) for value in column])


def _tensor_of_values(name: str, datatype: str, values: list[Any]) -> Tensor:
    """Return a column of Python's values, or of lists of them, as a tensor of a request."""
    if not any(isinstance(value, list) for value in values):
        return from_values(Head(name=name, datatype=datatype, shape=[len(values)]), values)  # type: ignore[arg-type]
    width = max(len(value or []) for value in values)
    padded = [[*(value or []), *[None] * (width - len(value or []))] for value in values]
    return from_values(Head(name=name, datatype=datatype, shape=[len(values), width]), padded)  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    """Return a value of a pandas column as a request has it: lists, Python's own numbers, None for no value."""
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(each) for each in value]
    if value is None or value != value:  # noqa: PLR0124 - NaN and NaT are not what they are
        return None
    return value.item() if isinstance(value, np.generic) else value


def _some(tensor: Tensor, places: npt.NDArray[np.intp]) -> Tensor:
    """Return some rows of a tensor."""
    shape = (places.size, *tensor.shape[1:])
    if isinstance(tensor.data, list):
        width = int(np.prod(tensor.shape[1:]))
        data: Any = [value for place in places for value in tensor.data[place * width : (place + 1) * width]]
        return Tensor(tensor.name, tensor.datatype, shape, data)
    return Tensor(tensor.name, tensor.datatype, shape, tensor.data.reshape(tensor.shape)[places].ravel())


def _load_pyfunc(path: str) -> RawScorer:
    """Return the scorer in the folder of a logged model; MLflow calls this by name."""
    return RawScorer.load(Path(path))
