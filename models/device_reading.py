"""Columns of a feature table, read by cuDF straight into device memory and passed on without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from models.inputs import FeatureColumn
from models.matrix import float_names, infinite_values, null_ids, other_type, unknown_id
from shortlist.contracts import Columns
from shortlist.system.execution import EXECUTION
from shortlist.system.query_engine import Engine, EngineError

if TYPE_CHECKING:  # trees on a CPU are trained without torch, which takes a second or two to load
    import torch

_MISSING = "the package cudf is not installed"


class DeviceColumns(Protocol):
    """Columns of some rows as tensors of one device; what cannot be read by a model is refused as on the host."""

    @property
    def rows(self) -> int:
        """Number of rows, N."""

    def labels(self) -> torch.Tensor:
        """Return the labels, float32, shape (N,)."""

    def floats(self, feature: FeatureColumn) -> torch.Tensor:
        """Return a feature's floats, float32, shape (N, width); null is NaN.

        Raises:
            DataError: A value is infinite, or a vector has another width.
        """

    def ids(self, feature: FeatureColumn) -> torch.Tensor:
        """Return a feature's ids, int32, shape (N,).

        Raises:
            DataError: An id is null or outside its feature's table.
        """

    def lists(self, feature: FeatureColumn) -> tuple[torch.Tensor, torch.Tensor]:
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
        return _own(self._frame[Columns.LABEL].astype("float32"))

    def floats(self, feature: FeatureColumn) -> torch.Tensor:
        """Return a feature's floats."""
        column = self._frame[feature.name]
        floats = _numbers(column)[:, None] if feature.width is None else _vectors(column, feature)
        infinite = floats.isinf()
        if bool(infinite.any()):
            raise infinite_values(float_names([feature])[int(infinite.any(dim=0).int().argmax())])
        return floats

    def ids(self, feature: FeatureColumn) -> torch.Tensor:
        """Return a feature's ids."""
        return _ids(self._frame[feature.name], feature)

    def lists(self, feature: FeatureColumn) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all ids of a multi-valued feature, and how many are each row's."""
        column = self._frame[feature.name]
        return _ids(column.list.leaves, feature), _lengths(column)


def float_frame(columns: CudfColumns, features: Sequence[FeatureColumn]) -> Any:
    """Return features as a `cudf.DataFrame` of float32 columns, named as `float_names` does; null is NaN.

    Raises:
        DataError: A value is infinite, or a vector has another width.
    """
    cudf = import_module("cudf")
    matrices = [columns.floats(feature) for feature in features]
    series = (column for matrix in matrices for column in matrix.unbind(dim=1))
    # Components of a vector lie between one another; a cuDF column lies in one piece.
    named = zip(float_names(features), series, strict=True)
    return cudf.DataFrame({name: cudf.Series(one.contiguous()) for name, one in named})


def reads_on_device(engine: Engine, device: str) -> bool:
    """Return whether cuDF reads the training rows: where there is a GPU and cuDF; else the host decodes them.

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
    """Return a column without nulls as a tensor of the same memory."""
    from torch.utils.dlpack import from_dlpack

    return from_dlpack(column.values)


def _own(column: Any) -> torch.Tensor:
    """Return a column as torch's own memory: only of that does it know that a side stream still reads it."""
    return _tensor(column).clone()


def _numbers(column: Any) -> torch.Tensor:
    return _tensor(column.astype("float32").fillna(float("nan")))


def _vectors(column: Any, feature: FeatureColumn) -> torch.Tensor:
    width = feature.width or 0
    lengths = _lengths(column)
    there = lengths == width
    if not bool((there | (lengths == 0)).all()):
        raise other_type(feature, f"List(Float32) of {int(lengths.min())} to {int(lengths.max())} values")
    leaves = _numbers(column.list.leaves).reshape(-1, width)
    if len(leaves) == len(lengths):
        return leaves
    floats = leaves.new_full((len(lengths), width), float("nan"))
    floats[there] = leaves  # a null vector has no leaves
    return floats


def _lengths(column: Any) -> torch.Tensor:
    return _own(column.list.len().fillna(0).astype("int64"))


def _ids(column: Any, feature: FeatureColumn) -> torch.Tensor:
    if column.null_count:
        raise null_ids(feature, int(column.null_count))
    largest = int(column.max()) if len(column) else 0
    if largest >= (feature.size or 0):
        raise unknown_id(feature, largest)
    return _tensor(column.astype("int32"))
