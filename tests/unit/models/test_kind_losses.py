"""A kind brings its own loss in its folder; one line of the registry makes it a kind that specs can declare."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from models import registry
from models.embedding.reading.layout import Layout
from models.embedding.training.losses import batch_loss, weighted_row_losses
from shortlist.ranking.inputs import TableFeature
from shortlist.ranking.ranker import Ranker
from shortlist.ranking.registry import kind_of
from shortlist.ranking.saved_models import load_ranker
from shortlist.ranking.validation import auc
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.training.train import train
from tests.unit.models.loss_kinds.focal.ranker import FocalNetwork
from tests.unit.models.loss_kinds.focal.section import FocalModel
from tests.unit.models.loss_kinds.two_label.section import TwoLabelModel

MINIMAL = Path(__file__).parents[2] / "specs/valid/minimal.yaml"
NETWORK: dict[str, Any] = {
    "features": ["user_id", "item_id", "age"], "embedding_dim": 4, "batch_size": 200, "epochs": 2,
    "learning_rate": 0.01, "embedding_learning_rate": 0.1,
}  # fmt: skip
FLOAT_LAYOUT = Layout.from_features([TableFeature(name="age", kind="dense")])


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the two kinds to the registry."""
    for name in ("focal", "two_label"):
        monkeypatch.setitem(registry.MODEL_KINDS, name, f"tests.unit.models.loss_kinds.{name}:KIND")


def trained(section: Any, table: DayTable, runtime: Runtime, folder: Path) -> Ranker[Any]:
    """Train as the training step does; return the model as it is read back."""
    train(section.kind, section, table, runtime, folder / "model", folder / "scores")
    return load_ranker(folder / "model")


DECLARE = """
import sys
from pathlib import Path
from models.registry import MODEL_KINDS
from shortlist.spec.load import parse_spec
MODEL_KINDS["focal"] = "tests.unit.models.loss_kinds.focal:KIND"
change = "models.focused={kind: focal, features: ['*'], focus: 1.5, role: baseline}"
section = parse_spec(Path(sys.argv[1]).read_text(), changes=[change]).models["focused"]
print(type(section).__name__, section.focus, section.learns_order, "torch" in sys.modules)
"""


def test_a_spec_declares_a_kind_with_its_own_loss() -> None:
    # In a process of its own, as kinds are read once: when the first spec of a process is parsed.
    ran = subprocess.run([sys.executable, "-c", DECLARE, str(MINIMAL)], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("FocalModel 1.5 False False\n", "")


def test_a_focal_loss_is_trained_saved_and_recorded(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, tmp_path: Path
) -> None:
    sharp, flat = (
        trained(kind_of("focal").section.model_validate({**NETWORK, "focus": focus}), table, runtime, tmp_path / name)
        for name, focus in (("sharp", 0.0), ("flat", 3.0))
    )
    labels = test_rows["label"].to_numpy().astype(float)
    for ranker in (sharp, flat):
        assert {"train_focal_loss", "validation_log_loss"} <= set(ranker.record.history[0])
        assert "train_log_loss" not in ranker.record.history[0]
        assert auc(labels, ranker.predict(test_rows).astype(float)) > 0.65
    # Rows that are scored well count less, so scores are less certain.
    assert np.abs(flat.log_odds(test_rows)).mean() < 0.8 * np.abs(sharp.log_odds(test_rows)).mean()


def test_a_loss_of_two_labels_is_trained_by_its_shares(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, tmp_path: Path
) -> None:
    aucs = {}
    for share in (0.0, 0.5, 1.0):
        section = TwoLabelModel(**NETWORK, labels=("like",), further_share=share)
        ranker = trained(section, table, runtime, tmp_path / str(share))
        assert "train_weighted_log_loss" in ranker.record.history[0]
        scores = {"label": ranker.predict(test_rows), "label_like": ranker.predict_further(test_rows)["like"]}
        aucs[share] = [auc(test_rows[name].to_numpy().astype(float), scores[name].astype(float)) for name in scores]
    label_auc, like_auc = np.array([aucs[share] for share in (0.0, 0.5, 1.0)]).T
    assert label_auc[0] > label_auc[2] + 0.1 and like_auc[2] > like_auc[0] + 0.1
    assert min(label_auc[1], like_auc[1]) > 0.65


def test_padding_and_weights_of_rows_are_left_to_the_caller() -> None:
    torch.manual_seed(0)
    network = FocalNetwork(FLOAT_LAYOUT, FocalModel(features=("age",), embedding_dim=4))
    dense, labels = torch.randn(6, 1), torch.tensor([1.0, 0, 0, 1, 1, 0])
    no_embeddings = torch.empty(0, 4)
    losses = weighted_row_losses(network, network(dense, no_embeddings), labels)
    padded = batch_loss(network, dense, no_embeddings, labels, torch.tensor(4))
    torch.testing.assert_close(padded, losses[:4].mean())
    torch.testing.assert_close(batch_loss(network, dense, no_embeddings, labels, None), losses.mean())
    weighted_labels = torch.tensor([2.0, -3, -1, 4, 1, -1])
    weighted_losses = weighted_row_losses(network, network(dense, no_embeddings), weighted_labels)
    torch.testing.assert_close(weighted_losses, losses * weighted_labels.abs())
