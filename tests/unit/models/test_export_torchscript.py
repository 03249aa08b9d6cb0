from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from models.dlrm.export import export_torchscript
from models.dlrm.network import DLRMRanker
from models.dlrm.section import DLRMModel
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_gives_the_scores_of_the_model(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, tmp_path: Path
) -> None:
    section = DLRMModel(features=("*",), embedding_dim=4, bottom_mlp=(8,), top_mlp=(8,), epochs=1)
    ranker = DLRMRanker(section)
    ranker.fit(table, runtime)
    ranker.save(tmp_path / "model")
    export_torchscript(tmp_path / "model", tmp_path / "model.pt")
    assert "model.pt" not in {path.name for path in (tmp_path / "model").iterdir()}  # it is code
    loaded = torch.jit.load(tmp_path / "model.pt")
    for rows in (test_rows, test_rows[:1]):
        floats = np.column_stack([rows["age"].to_numpy(), rows["text"].to_numpy()])
        longest = int(rows["tags_id"].list.len().max() or 1)  # type: ignore[arg-type] # a length
        lists = [[*values, *[-1] * (longest - len(values))] for values in rows["tags_id"].to_list()]
        ids = rows.select("user_id", "item_id").cast(pl.Int64).to_numpy()
        tensors = (torch.from_numpy(floats), torch.from_numpy(ids.copy()), torch.tensor(lists, dtype=torch.int64))
        scores = loaded(*tensors)
        assert scores.shape == (rows.height, 1)
        np.testing.assert_allclose(scores[:, 0].detach().numpy(), ranker.predict(rows), atol=1e-6)
