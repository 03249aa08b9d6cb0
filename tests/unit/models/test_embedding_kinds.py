"""The other networks over embedded ids: their layers by hand, training, saving and narrow products."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from models.dcn.network import Cross, CrossNetwork
from models.embedding.ranker import EmbeddingRanker
from models.embedding.reading.layout import Layout
from models.embedding_section import EmbeddingSection
from models.finalnet.network import Factorised
from models.wide_deep.network import WideDeep
from models.wide_deep.section import WideDeepModel
from shortlist.evaluation.metrics.pointwise import auc
from shortlist.ranking.inputs import TableFeature
from shortlist.ranking.ranker import IncompatibleModelError
from shortlist.ranking.registry import kind_of
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable

WIDTHS: dict[str, tuple[str, dict[str, Any]]] = {
    "low rank": ("dcn", {"cross_rank": 4, "deep_mlp": (16,)}),
    "full rank": ("dcn", {"cross_rank": None, "deep_mlp": (16,)}),
    "wide_deep": ("wide_deep", {"deep_mlp": (16,)}),
    "finalnet": ("finalnet", {"mlp": (16, 8), "dropout": 0.1}),
}
PLAIN: dict[str, Any] = {"features": ("*",), "embedding_dim": 8, "batch_size": 100, "epochs": 3}


def section_of(name: str, **changed: Any) -> EmbeddingSection:
    kind, widths = WIDTHS[name]
    section = kind_of(kind).section.model_validate({"kind": kind, **PLAIN, **widths, **changed})
    assert isinstance(section, EmbeddingSection)
    return section


def ranker_of(section: EmbeddingSection) -> EmbeddingRanker[Any]:
    ranker: EmbeddingRanker[Any] = kind_of(section.kind).load("ranker")(section)
    return ranker


@pytest.mark.parametrize("name", WIDTHS)
def test_it_learns_is_kept_and_goes_on_warm(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, tmp_path: Path, name: str
) -> None:
    ranker = ranker_of(section_of(name))
    ranker.fit(table, runtime)
    ranker.save(tmp_path / "model")
    scores = ranker.predict(test_rows)
    assert auc(test_rows["label"].to_numpy().astype(float), scores.astype(float)) > 0.65
    np.testing.assert_array_equal(type(ranker).load(tmp_path / "model").predict(test_rows), scores)
    warm = ranker_of(section_of(name, retrain="warm", retrain_epochs=1, retrain_days=0))
    record = warm.fit(table, runtime, champion=tmp_path / "model")
    assert record.epochs == 1
    first = ranker.record.history[0]["validation_log_loss"]
    assert record.history[0]["validation_log_loss"] < first  # type: ignore[operator] # numbers
    deeper = {"cross_layers": 3} if name.endswith("rank") else {"deep_mlp": (16, 16), "mlp": (16, 8, 8)}
    deeper_section = section_of(
        name, **{key: value for key, value in deeper.items() if key in type(warm.section).model_fields}
    )
    with pytest.raises(
        IncompatibleModelError, match=r"cannot start from this champion: (it has no|'deep|'top|'layers)"
    ):
        ranker_of(deeper_section).fit(table, runtime, champion=tmp_path / "model")


@pytest.mark.parametrize("name", WIDTHS)
def test_the_declared_widths_are_those_of_the_network(name: str) -> None:
    features = [
        TableFeature(name="age", kind="dense"),
        *(TableFeature(name=f"id{n}", kind="id", size=5) for n in "ab"),
    ]
    section, layout = section_of(name), Layout.from_features(features)
    network = ranker_of(section).model_type(layout, section).network
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    wide = 1 if name == "wide_deep" else 0  # floats' own weights, no layer of the perceptrons
    _, widths = section.perceptrons(layout.floats, len(layout.tables))
    assert sum(layer.weight.numel() for layer in layers) - wide == sum(a * b for a, b in pairwise(widths))


@pytest.mark.parametrize("name", WIDTHS)
def test_narrow_products_and_filled_widths_change_little(name: str) -> None:
    features = [TableFeature(name="age", kind="dense"), TableFeature(name="a", kind="id", size=5)]
    section, layout = section_of(name, dropout=0.0), Layout.from_features(features)
    torch.manual_seed(0)
    network = ranker_of(section).model_type(layout, section).network.train()
    dense, pooled = torch.randn(32, 1), torch.randn(32, section.embedding_dim)
    plain = network(dense, pooled)
    network.narrow, network.multiple = torch.bfloat16, 8
    narrow = network(dense, pooled)
    assert narrow.dtype is torch.float32
    torch.testing.assert_close(narrow, plain, atol=0.1, rtol=0.05)
    narrow.sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_a_cross_multiplies_every_input_with_a_sum_of_all() -> None:
    cross = Cross(2, None)
    with torch.no_grad():
        cross.up.weight.copy_(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
        cross.up.bias.copy_(torch.tensor([0.5, 0.0]))
    first, x = torch.tensor([[2.0, 3.0]]), torch.tensor([[1.0, 4.0]])
    assert cross(first, x).tolist() == [[2 * (1 + 2 * 4 + 0.5) + 1, 3 * 4 + 4]]


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("layers", [1, 3])
def test_the_derivative_of_crosses_is_that_of_autograd(rank: int | None, layers: int) -> None:
    features = [TableFeature(name="age", kind="dense"), TableFeature(name="a", kind="id", size=5)]
    section, layout = section_of("low rank", cross_rank=rank, cross_layers=layers), Layout.from_features(features)
    torch.manual_seed(0)
    network = ranker_of(section).model_type(layout, section).network.train()
    assert isinstance(network, CrossNetwork)
    first = torch.randn(6, 1 + 8, requires_grad=True)
    weights = torch.randn(6, 1 + 8)
    crossed = network._cross_inputs(first)
    plain = first
    for cross in network.crosses:
        plain = cross(first, plain)
    torch.testing.assert_close(crossed, plain)
    inputs = [first, *network.crosses.parameters()]
    gradients = [torch.autograd.grad((output * weights).sum(), inputs) for output in (crossed, plain)]
    torch.testing.assert_close(*gradients)
    network.narrow = torch.bfloat16
    narrow = network._cross_inputs(first)
    assert narrow.dtype is torch.bfloat16
    for gradient, exact in zip(torch.autograd.grad((narrow * weights).sum(), inputs), gradients[0], strict=True):
        assert gradient.dtype is torch.float32
        # bf16 rounds every factor and sum to 8 bits.
        assert (gradient - exact).norm() <= 0.02 * exact.norm()


def test_a_factorised_layer_is_half_linear_and_half_product() -> None:
    layer = Factorised(2, 4)
    with torch.no_grad():
        layer.linear.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.0]]))
        layer.linear.bias.zero_()
    assert layer(torch.tensor([[2.0, 3.0]])).tolist() == [[2, 3, 2 * (2 + 3), 0]]  # 3 * -2 is below zero


def test_the_wide_part_is_the_sum_of_the_ids_own_weights() -> None:
    section = WideDeepModel(features=("*",), embedding_dim=4, deep_mlp=(2,))
    layout = Layout.from_features([TableFeature(name=name, kind="id", size=3) for name in "ab"])
    network = WideDeep(layout, section).network.eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    pooled = torch.tensor([[0.5, 9, 9, 9], [0.25, 9, 9, 9]])
    assert network(torch.zeros(1, 1), pooled).tolist() == [0.75]
