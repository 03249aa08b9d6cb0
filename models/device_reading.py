"""Columns of a feature table, read by cuDF straight into device memory and passed on without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shortlist.contracts import Columns
from shortlist.ranking.inputs import TableFeature
from shortlist.ranking.matrix import (
    float_names,
    infinite_values_error,
    null_ids_error,
    unknown_id_error,
    vector_type_error,
)
from shortlist.system.execution import EXECUTION
from shortlist.system.query_engine import Engine, EngineError

if TYPE_CHECKING:  # trees on a CPU are trained without torch, which takes a second or two to load
    import torch

_MISSING = "the package cudf is not installed"


class DeviceColumns(Protocol):
    """Columns as tensors of one device; values that a model cannot read raise the same errors as on the host."""

    @property
    def rows(self) -> int:
        """Number of rows, N."""

    def labels(self) -> torch.Tensor:
        """Return the labels, float32, shape (N,)."""

    def floats(self, feature: TableFeature) -> torch.Tensor:
        """Return a feature's floats, float32, shape (N, width); null is NaN, and so is the unknown id, 0.

        Raises:
            DataError: A value is infinite, or a vector has another width.
        """

    def ids(self, feature: TableFeature) -> torch.Tensor:
        """Return a feature's ids, int32, shape (N,).

        Raises:
            DataError: An id is null or outside its feature's table.
        """

    def lists(self, feature: TableFeature) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all ids of a multi-valued feature, int32, and how many are each row's, int64, shape (N,).

        Raises:
            DataError: An id is null or outside the feature's table.
        """


class CudfColumns:
    """Columns of a cuDF frame."""

    def __init__(self, frame: Any) -> None:
        """Take a `cudf.DataFrame`."""
        self._frame = frame

    @classmethod
    def read(cls, path: Path, names: Sequence[str]) -> CudfColumns:
        """Read columns of a Parquet file; it is decoded on the device."""
        return cls(import_module("cudf").read_parquet(path, columns=list(names)))

    @property
    def rows(self) -> int:
        """Number of rows, N."""
        return len(self._frame)

    def column(self, name: str) -> Any:
        """Return a column as a `cudf.Series`."""
        return self._frame[name]

    def labels(self) -> torch.Tensor:
        """Return the labels."""
        return _copied_tensor(self._frame[Columns.LABEL].astype("float32"))

    def floats(self, feature: TableFeature) -> torch.Tensor:
        """Return a feature's floats."""
        column = self._frame[feature.name]
        column = column.where(column != 0) if feature.kind == "id" else column
        floats = _float_tensor(column)[:, None] if feature.width is None else _vector_tensor(column, feature)
        infinite = floats.isinf()
        if bool(infinite.any()):
            raise infinite_values_error(float_names([feature])[int(infinite.any(dim=0).int().argmax())])
        return floats

    def ids(self, feature: TableFeature) -> torch.Tensor:
        """Return a feature's ids."""
        return _id_tensor(self._frame[feature.name], feature)

    def lists(self, feature: TableFeature) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all ids of a multi-valued feature, and how many are each row's."""
        column = self._frame[feature.name]
        return _id_tensor(column.list.leaves, feature), _length_tensor(column)


def float_frame(columns: CudfColumns, features: Sequence[TableFeature]) -> Any:
    """Return features as a `cudf.DataFrame` of float32 columns, named as `float_names` does; null is NaN.

    Raises:
        DataError: A value is infinite, or a vector has another width.
    """
    cudf = import_module("cudf")
    matrices = [columns.floats(feature) for feature in features]
    series = (column for matrix in matrices for column in matrix.unbind(dim=1))
    # The components of a vector are interleaved in memory; a cuDF column must be contiguous.
    named_columns = zip(float_names(features), series, strict=True)
    return cudf.DataFrame({name: cudf.Series(column.contiguous()) for name, column in named_columns})


def reads_on_device(engine: Engine, device: str) -> bool:
    """Return whether cuDF reads the training rows (GPU and cuDF are present); else the host decodes them.

    Raises:
        EngineError: `gpu` is declared, and cuDF is not installed.
    """
    if device != "cuda":
        return False
    if find_spec("cudf") is not None:
        return True
    if engine == "gpu":
        raise EngineError(
            f"runtime.engine is gpu, but {_MISSING}: training rows cannot be read into device memory. Install"
            " requirements/gpu.txt, or declare engine: auto to have the host decode them."
        )
    EXECUTION.on_cpu(f"decoding of training rows ({_MISSING})")
    return False


def _tensor(column: Any) -> torch.Tensor:
    """Return a column without nulls as a tensor that shares its memory."""
    from torch.utils.dlpack import from_dlpack

    return from_dlpack(column.values)


def _copied_tensor(column: Any) -> torch.Tensor:
    """Return a column copied to memory of torch, which tracks only its own memory when a side stream still reads it."""
    return _tensor(column).clone()


def _float_tensor(column: Any) -> torch.Tensor:
    return _tensor(column.astype("float32").fillna(float("nan")))


def _vector_tensor(column: Any, feature: TableFeature) -> torch.Tensor:
    width = feature.width or 0
    lengths = _length_tensor(column)
    has_vector = lengths == width
    if not bool((has_vector | (lengths == 0)).all()):
        raise vector_type_error(feature, f"List(Float32) of {int(lengths.min())} to {int(lengths.max())} values")
    leaves = _float_tensor(column.list.leaves).reshape(-1, width)
    if len(leaves) == len(lengths):
        return leaves
    floats = leaves.new_full((len(lengths), width), float("nan"))
    floats[has_vector] = leaves  # a null vector has no leaves
    return floats


def _length_tensor(column: Any) -> torch.Tensor:
    return _copied_tensor(column.list.len().fillna(0).astype("int64"))


def _id_tensor(column: Any, feature: TableFeature) -> torch.Tensor:
    if column.null_count:
        raise null_ids_error(feature, int(column.null_count))
    largest = int(column.max()) if len(column) else 0
    if largest >= (feature.size or 0):
        raise unknown_id_error(feature, largest)
    return _tensor(column.astype("int32"))
