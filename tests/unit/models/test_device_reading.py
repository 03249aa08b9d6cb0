from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from models import device_reading
from models.device_reading import CudfColumns, float_frame, reads_on_device
from shortlist.contracts import DataError
from shortlist.ranking.inputs import TableFeature
from shortlist.ranking.matrix import float_matrix, fused_lists, fused_rows
from shortlist.system.execution import EXECUTION
from shortlist.system.query_engine import EngineError

AGE = TableFeature(name="age", kind="dense")
TEXT = TableFeature(name="text", kind="vector", width=2)
ITEM = TableFeature(name="item", kind="id", size=4)
TAGS = TableFeature(name="tags", kind="ids", size=4)
FRAME = pl.DataFrame(
    {
        "label": pl.Series([1, 0, 1], dtype=pl.Int8),
        "age": pl.Series([1.5, None, 3], dtype=pl.Float32),
        "text": pl.Series([[5, 6], None, [7, 8]], dtype=pl.Array(pl.Float32, 2)),
        "item": pl.Series([3, 0, 1], dtype=pl.UInt32),
        "tags": pl.Series([[1, 2], None, [3]], dtype=pl.List(pl.UInt32)),
    }
)
TYPES = {"float32": pl.Float32, "int32": pl.Int32, "int64": pl.Int64}


class Series:
    """What we use of `cudf.Series`, over Polars."""

    def __init__(self, column: Any) -> None:
        self._column: pl.Series = column if isinstance(column, pl.Series) else pl.Series(column.numpy())

    def __len__(self) -> int:
        return len(self._column)

    @property
    def null_count(self) -> int:
        return self._column.null_count()

    @property
    def values(self) -> np.ndarray:
        assert not self._column.null_count(), "cuDF has no values for nulls"
        return self._column.to_numpy(writable=True)

    @property
    def list(self) -> Any:
        lists = self._column if self._column.dtype == pl.List else self._column.arr.to_list()
        leaves = lists.drop_nulls().explode(empty_as_null=False, keep_nulls=False)
        return SimpleNamespace(leaves=Series(leaves), len=lambda: Series(lists.list.len()))

    def astype(self, kind: str) -> Series:
        return Series(self._column.cast(TYPES[kind]))

    def fillna(self, value: float) -> Series:
        return Series(self._column.fill_null(value))

    def max(self) -> Any:
        return self._column.max()

    def __ne__(self, value: object) -> Any:
        return self._column != value

    def where(self, condition: pl.Series) -> Series:
        return Series(pl.select(pl.when(condition).then(self._column)).to_series())


class Frame(dict[str, Series]):
    """What we use of `cudf.DataFrame`."""

    def __len__(self) -> int:
        return len(next(iter(self.values())))


def read_parquet(path: Path, columns: Sequence[str]) -> Frame:
    return Frame(
        {name: Series(column) for name, column in pl.read_parquet(path, columns=list(columns)).to_dict().items()}
    )


@pytest.fixture(autouse=True)
def cudf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cudf", SimpleNamespace(read_parquet=read_parquet, Series=Series, DataFrame=Frame))


def read(frame: pl.DataFrame, tmp_path: Path) -> CudfColumns:
    frame.write_parquet(tmp_path / "rows.parquet")
    return CudfColumns.read(tmp_path / "rows.parquet", frame.columns)


def test_columns_on_the_device_are_those_of_the_host(tmp_path: Path) -> None:
    columns = read(FRAME, tmp_path)
    assert columns.rows == 3
    assert columns.labels().tolist() == [1, 0, 1]
    floats = torch.cat([columns.floats(feature) for feature in (TEXT, AGE, ITEM)], dim=1)
    np.testing.assert_array_equal(floats.numpy(), float_matrix(FRAME, [TEXT, AGE, ITEM]))
    assert columns.ids(ITEM).tolist() == fused_rows(FRAME, [ITEM], [0])[:, 0].tolist()
    values, lengths = columns.lists(TAGS)
    expected, edges = fused_lists(FRAME, TAGS, 0)
    assert values.tolist() == expected.tolist()
    assert lengths.tolist() == np.diff(edges).tolist()
    assert (values.dtype, lengths.dtype, floats.dtype) == (torch.int32, torch.int64, torch.float32)


def test_columns_share_the_memory_of_what_was_read() -> None:
    ages = np.array([1, 2], np.float32)
    column = SimpleNamespace(values=ages)
    column.astype = column.fillna = lambda value: column
    tensor = CudfColumns({"age": column}).floats(AGE)
    ages[0] = 7
    assert tensor.tolist() == [[7], [2]]


@pytest.mark.parametrize(
    ("name", "values", "feature"),
    [
        ("age", [1, np.inf, 2], AGE),
        ("text", [[1, 2], [3, -np.inf], None], TEXT),
        ("item", [1, None, 2], ITEM),
        ("item", [1, 4, 2], ITEM),
        ("tags", [[1], [None], [2]], TAGS),
        ("tags", [[1], [9, 2], None], TAGS),
    ],
)
def test_the_device_refuses_with_the_message_of_the_host(
    name: str, values: Any, feature: TableFeature, tmp_path: Path
) -> None:
    frame = FRAME.with_columns(pl.Series(name, values, dtype=FRAME[name].dtype))
    host: dict[str, Callable[[], object]] = {
        "dense": lambda: float_matrix(frame, [feature]),
        "vector": lambda: float_matrix(frame, [feature]),
        "id": lambda: fused_rows(frame, [feature], [0]),
        "ids": lambda: fused_lists(frame, feature, 0),
    }
    with pytest.raises(DataError) as on_host:
        host[feature.kind]()
    columns = read(frame, tmp_path)
    device: dict[str, Callable[[TableFeature], object]] = {
        "dense": columns.floats, "vector": columns.floats, "id": columns.ids, "ids": columns.lists
    }  # fmt: skip
    with pytest.raises(DataError) as on_device:
        device[feature.kind](feature)
    assert str(on_device.value) == str(on_host.value)


def test_a_vector_of_another_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"feature 'text' is of type List.* of 0 to 2 values; wanted Array\(Float32, 3"):
        read(FRAME, tmp_path).floats(TEXT.model_copy(update={"width": 3}))


def test_trees_get_a_frame_with_a_column_per_component(tmp_path: Path) -> None:
    frame = float_frame(read(FRAME, tmp_path), [ITEM, TEXT])
    assert list(frame) == ["item", "text.0", "text.1"]
    np.testing.assert_array_equal(frame["text.1"].values, np.array([6, np.nan, 8], np.float32))
    np.testing.assert_array_equal(frame["item"].values, np.array([3, np.nan, 1], np.float32))


def test_the_host_decodes_only_where_the_engine_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_reading, "find_spec", lambda name: object())
    assert reads_on_device("gpu", "cuda")
    assert not reads_on_device("gpu", "cpu")
    monkeypatch.setattr(device_reading, "find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r"engine is gpu, but the package cudf is not installed: .* engine: auto"):
        reads_on_device("gpu", "cuda")
    EXECUTION.clear()
    EXECUTION.set_engine("gpu")
    assert not reads_on_device("auto", "cuda")
    assert EXECUTION.record() == {
        "name": "gpu", "on_cpu": {"decoding of training rows (the package cudf is not installed)": 1}
    }  # fmt: skip
    EXECUTION.clear()
