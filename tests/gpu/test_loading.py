"""Training rows on a GPU: bit by bit those of the host, wherever they are kept."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import pytest
import torch

from models.embedding.reading.batches import BatchLoader, ChunkStore
from models.embedding.reading.chunks import Batch
from models.embedding.reading.device_batches import DeviceStore
from models.embedding.reading.file_offsets import read_chunk_size
from models.embedding.reading.layout import Layout
from models.embedding.reading.loading import cudf_decoder, host_decoder
from shortlist.contracts import Columns, Files
from shortlist.ranking.inputs import LearningTable, features_matching
from shortlist.storage.tables import DayTable, DayTableWriter

pytestmark = pytest.mark.gpu
COLUMNS = [
    {"name": "item_id", "kind": "id", "size": 50},
    {"name": "tags_id", "kind": "ids", "size": 10},
    {"name": "text", "kind": "vector", "width": 13},
    {"name": "age", "kind": "dense"},
]


@pytest.fixture
def learning(tmp_path: Path) -> LearningTable:
    random = np.random.default_rng(1)
    writer = DayTableWriter(tmp_path / "table", Files.TABLE, chunk_rows=1_000)
    days = [date(2026, 1, 5 + number) for number in range(4)]
    for day in days:
        frame = {
            Columns.LABEL: pl.Series(random.integers(0, 2, 1_500), dtype=pl.Int8),
            Columns.DAY: [day] * 1_500,
            "item_id": pl.Series(random.integers(0, 50, 1_500), dtype=pl.UInt32),
            "tags_id": pl.Series([list(range(random.integers(0, 4))) for _ in range(1_500)], dtype=pl.List(pl.UInt32)),
            "text": pl.Series(random.random((1_500, 13), np.float32), dtype=pl.Array(pl.Float32, 13)),
            "age": pl.Series([None if row % 50 == 0 else row for row in range(1_500)], dtype=pl.Float32),
        }
        writer.append(pl.DataFrame(frame))
    named = [str(day) for day in days]
    split = {"train": named[:2], "validation": named[2:3], "test": named[3:]}
    table = writer.close({"columns": COLUMNS, "split": split})
    return LearningTable(table, features_matching(DayTable.open(tmp_path / "table", Files.TABLE), ("*",)))


def assert_same(host: BatchLoader, device: BatchLoader) -> None:
    for epoch in (1, 2):
        for host_batch, device_batch in zip(host.shuffled(epoch), device.shuffled(epoch), strict=True):
            assert device_batch.dense_BF.is_cuda
            _assert_equal(host_batch, device_batch.to("cpu"))
    for host_batch, device_batch in zip(host.in_order(), device.in_order(), strict=True):
        _assert_equal(host_batch, device_batch.to("cpu"))


def _assert_equal(batch: Batch, expected: Batch) -> None:
    np.testing.assert_array_equal(batch.dense_BF, expected.dense_BF)
    assert torch.equal(batch.labels_B, expected.labels_B)
    for tensor, expected_tensor in zip(batch.lookups, expected.lookups, strict=True):
        assert tensor is not None
        assert expected_tensor is not None
        assert torch.equal(tensor, expected_tensor)


@pytest.mark.parametrize("reader", ["cudf", "host"])
@pytest.mark.parametrize("storage", ["device", "host", "files"])
def test_batches_on_a_gpu_are_those_of_the_host(
    learning: LearningTable, storage: Literal["device", "host", "files"], reader: str
) -> None:
    if reader == "cudf":
        pytest.importorskip("cudf")
    layout = Layout.from_features(learning.features)
    sizes = {path: read_chunk_size(path, layout) for path in learning.paths("train")}
    decode = cudf_decoder(learning, layout, "cuda") if reader == "cudf" else host_decoder(learning, layout)
    host = ChunkStore(learning, layout, 2**30)
    assert_same(
        *(
            BatchLoader(store, learning.paths("train"), 100, 1_000, seed=5)
            for store in (host, DeviceStore(decode, sizes, "cuda", storage))
        )
    )


def test_rows_on_their_way_are_there_when_they_are_computed_with(learning: LearningTable) -> None:
    layout = Layout.from_features(learning.features)
    sizes = {path: read_chunk_size(path, layout) for path in learning.paths("train")}
    store = DeviceStore(host_decoder(learning, layout), sizes, "cuda", "host")
    busy = torch.rand(4_096, 4_096, device="cuda")
    sums = []
    for batch in BatchLoader(store, learning.paths("train"), 10, 500, seed=5).shuffled(1):
        busy = busy @ busy / 4_096  # pools are fetched, and their memory is used again, while the device is behind
        sums.append(batch.labels_B.sum())
    assert int(torch.stack(sums).sum()) == sum(int(frame["label"].sum()) for frame in learning.frames("train"))


def test_trees_learn_from_cudf_frames_what_they_learn_from_the_host(learning: LearningTable) -> None:
    pytest.importorskip("cudf")
    xgboost = pytest.importorskip("xgboost")
    if not xgboost.build_info()["USE_CUDA"]:
        pytest.skip("this XGBoost is built without CUDA")
    from models.xgboost.matrices import binned_matrices
    from shortlist.ranking.matrix import float_matrix
    from shortlist.spec.runtime import Runtime

    trees = LearningTable(learning._table, tuple(feature for feature in learning.features if feature.kind != "ids"))
    scores = []
    for engine, device in (("cpu", "cpu"), ("gpu", "cuda")):
        for budget in (2_048, 0):
            runtime = Runtime(engine=engine).model_copy(update={"memory_budget_mib": budget})
            with binned_matrices(trees, runtime, 64) as matrix:
                params = {"objective": "binary:logistic", "device": device, "max_bin": 64, "max_depth": 3}
                booster = xgboost.train(params, matrix(("train",), None), 3)
            frame = next(trees.frames("train"))
            booster.set_param({"device": "cpu"})
            scores.append(booster.inplace_predict(float_matrix(frame, trees.features), validate_features=False))
    for device_scores in scores[1:]:
        np.testing.assert_allclose(device_scores, scores[0], atol=2e-2)
