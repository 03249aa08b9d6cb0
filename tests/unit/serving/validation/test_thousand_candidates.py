"""A request of a thousand candidates for one user: Triton encodes the history once, with unchanged scores."""

from __future__ import annotations

import asyncio
import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import polars as pl
import pytest

from models.din.section import DINModel
from shortlist.contracts import Columns, Files
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.serving.export.program.scorers import HISTORY
from shortlist.serving.export.repository import write_repository
from shortlist.serving.export.signature import FOLDER, Signature
from shortlist.serving.server.day_assembler import DayAssembler
from shortlist.serving.server.scoring.triton_client import TritonClient
from shortlist.serving.triton.triton import running_triton
from shortlist.spec.serving import Batching, Scoring
from shortlist.storage.tables import DayTable
from shortlist.training.export import export, pack
from shortlist.training.train import train

CANDIDATES, PIECE = 1_000, 40
HISTORY_LENGTH = 10
DIN: dict[str, Any] = {
    "features": ["*_log", "*_id"], "embedding_dim": 8, "epochs": 2, "batch_size": 128, "learning_rate": 0.01,
    "embedding_learning_rate": 0.3, "history": "user_items", "target": "item_id_id",
}  # fmt: skip


@pytest.fixture(scope="module")
def model(trained: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("candidates")
    table = DayTable.open(trained.root / "table", Files.TABLE)
    train("din", DINModel.model_validate(DIN), table, trained.spec.runtime, folder / "model", folder / "scores")
    pack(folder / "model", trained.fitted)
    export(folder / "model", "demo")
    return folder / "model"


class Requests:
    """Requests of users with full histories, as tensors of a server."""

    def __init__(self, trained: Any, model: Path) -> None:
        signature = Signature.read(model / FOLDER)
        plan = Preprocessing.load(model / Files.PREPROCESSING).plan
        self._assembler = DayAssembler(plan, signature, ViewIndex.read(trained.fitted / "views"))
        log, table = DayTable.open(trained.log, Files.LOG), DayTable.open(trained.root / "table", Files.TABLE)
        self.day: date = log.days[-1].day
        rows = pl.concat([frame for day, frame in log.frames() if day == self.day])
        lists = pl.concat([frame for day, frame in table.frames() if day == self.day])
        full = lists.filter(pl.col("user_items").list.len() == HISTORY_LENGTH).select(Columns.IMPRESSION)
        self.of_users = rows.join(full, Columns.IMPRESSION, "semi").unique("user_id", maintain_order=True)
        self._items = pl.read_parquet(trained.log / "side/items.parquet")["item_id"].to_numpy()

    def tensors(self, user: int, first: int, last: int) -> dict[str, np.ndarray]:
        """Return the tensors of some of a user's thousand candidates; all items occur, at different positions."""
        number, row = np.arange(first, last), self.of_users.row(user, named=True)
        time_us = int(row[Columns.TIME].timestamp() * 1e6)
        columns = {
            "user_id": ("INT64", [row["user_id"]]),
            "item_id": ("INT64", self._items[number % len(self._items)].tolist()),
            "surface": ("BYTES", [row["surface"]]),
            "device": ("BYTES", [row["device"]]),
            "position": ("INT64", (1 + number % 7).tolist()),
            "duration": ("FP64", (5.0 + number % 90).tolist()),
            Columns.TIME: ("INT64", [time_us]),
        }
        inputs = [
            {"name": name, "datatype": datatype, "shape": [len(values)], "data": values}
            for name, (datatype, values) in columns.items()
        ]
        body = json.dumps({"inputs": inputs}).encode()
        return dict(self._assembler.request_tensors(body, None, CANDIDATES, self.day))

    def whole(self, user: int) -> dict[str, np.ndarray]:
        return self.tensors(user, 0, CANDIDATES)

    def pieces(self, user: int) -> list[dict[str, np.ndarray]]:
        return [self.tensors(user, first, first + PIECE) for first in range(0, CANDIDATES, PIECE)]


@pytest.fixture(scope="module")
def requests(trained: Any, model: Path) -> Requests:
    return Requests(trained, model)


async def score_requests(address: str, together: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    """Return the scores of several concurrent requests."""
    client = TritonClient(address, "demo", 1)
    try:
        return await asyncio.gather(*(client.scores(tensors) for tensors in together))
    finally:
        client.close()


@pytest.mark.parametrize("runtime", ["split", "onnxruntime"])
def test_a_thousand_candidates_score_as_in_small_requests(
    requests: Requests, model: Path, tmp_path: Path, runtime: Any
) -> None:
    write_repository(model / FOLDER, 1, Batching(), tmp_path / "repository", "python", Scoring(runtime=runtime))
    with running_triton(tmp_path / "repository") as triton:
        (whole,) = asyncio.run(score_requests(triton.http, [requests.whole(0)]))
        pieces = [asyncio.run(score_requests(triton.http, [piece]))[0] for piece in requests.pieces(0)]
        joined = asyncio.run(score_requests(triton.http, [requests.whole(user) for user in (0, 1, 0)]))
    assert whole.shape == (CANDIDATES,) and len(pieces) == CANDIDATES // PIECE
    np.testing.assert_allclose(whole, np.concatenate(pieces), atol=1e-5)
    for alone in (joined[0], joined[2]):
        np.testing.assert_allclose(alone, whole, atol=1e-5)  # whatever Triton joined it with
    # What would go wrong unseen: equal scores, or another user's history.
    assert len(np.unique(whole.round(4))) > 100
    assert np.abs(joined[1] - whole).max() > 0.01


def test_the_history_counts_and_is_looked_up_once_for_all_candidates(
    requests: Requests, model: Path, tmp_path: Path
) -> None:
    write_repository(model / FOLDER, 1, Batching(), tmp_path / "repository")
    folder = tmp_path / "repository/demo/1"
    features = onnxruntime.InferenceSession(folder / "features.onnx", providers=["CPUExecutionProvider"])
    network = onnxruntime.InferenceSession(folder / "network.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in features.get_outputs()]
    border_tensors = dict(zip(names, features.run(None, requests.whole(0)), strict=True))
    assert {name: len(value) for name, value in border_tensors.items()} == {
        name: 1 if name == HISTORY else CANDIDATES for name in names
    }
    assert border_tensors[HISTORY].shape == (1, HISTORY_LENGTH) and not border_tensors["border_run"].any()
    (scores,) = network.run(None, border_tensors)
    (history,) = features.run([HISTORY], requests.whole(1))
    (other_scores,) = network.run(None, {**border_tensors, HISTORY: history})
    assert np.abs(scores - other_scores).max() > 1e-6  # the same history gives the same bits
    # Two users' requests that Triton joined are two histories.
    both_requests = {
        name: np.concatenate([value, requests.whole(1)[name]]) for name, value in requests.whole(0).items()
    }
    assert (
        features.run([HISTORY, "border_run"], both_requests)[1].ravel().tolist() == [0] * CANDIDATES + [1] * CANDIDATES
    )
