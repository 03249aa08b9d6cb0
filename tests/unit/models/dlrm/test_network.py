from __future__ import annotations

import math

import pytest
import torch

from models.dlrm.network import DLRM
from models.dlrm.section import DLRMModel
from models.embedding.network.perceptron import perceptron
from models.embedding.reading.chunks import Lookups
from models.embedding.reading.layout import Layout
from models.embedding.table.fused_table import FusedTable
from shortlist.contracts import ShortlistError
from shortlist.ranking.inputs import TableFeature

FEATURES = (
    TableFeature(name="tags", kind="ids", size=4),
    TableFeature(name="user", kind="id", size=3),
    TableFeature(name="age", kind="dense"),
    TableFeature(name="item", kind="id", size=5),
    TableFeature(name="text", kind="vector", width=2),
)
LAYOUT = Layout.from_features(FEATURES)
SECTION = DLRMModel(features=("*",), embedding_dim=4, bottom_mlp=(6,), top_mlp=(5, 3))
USERS, ITEMS, TAGS = [1, 2], [4, 0], [[3, 1], []]
DENSE = [[1.5, -2.0, float("nan")], [float("nan"), 0.5, 3.0]]


def lookups() -> Lookups:
    """The rows of two impressions: user and item of each, then the tags of each."""
    user, item, tags = LAYOUT.starts
    singles = [user + USERS[0], item + ITEMS[0], user + USERS[1], item + ITEMS[1]]
    rows = [*singles, *(tags + tag for row in TAGS for tag in row)]
    starts = [0, 1, 2, 3, 4, 6, 6]
    shares = [1, 1, 1, 1, 1 / 2, 1 / 2]
    return Lookups(torch.tensor(rows).int(), torch.tensor(starts).int(), torch.tensor(shares, dtype=torch.float32))


@pytest.fixture
def model() -> DLRM:
    torch.manual_seed(0)
    model = DLRM(LAYOUT, SECTION)
    model.table.weight_RD.normal_()
    model.network.mean_F.copy_(torch.tensor([1.0, 0.0, 2.0]))
    model.network.scale_F.copy_(torch.tensor([0.5, 1.0, 2.0]))
    return model.eval()


def test_the_fused_table_has_single_ids_first_and_lists_last() -> None:
    assert [feature.name for feature in LAYOUT.tables] == ["user", "item", "tags"]
    assert LAYOUT.starts == (0, 3, 3 + 5)
    assert LAYOUT.rows == 3 + 5 + 4
    assert LAYOUT.floats == 1 + 2


def through(network: torch.nn.Sequential, vector: list[float], last_relu: bool) -> list[float]:
    linears = [layer for layer in network if isinstance(layer, torch.nn.Linear)]
    for number, linear in enumerate(linears, start=1):
        weight, bias = linear.weight.tolist(), linear.bias.tolist()
        sums = [math.fsum(w * x for w, x in zip(row, vector, strict=True)) for row in weight]
        vector = [total + b for total, b in zip(sums, bias, strict=True)]
        if last_relu or number < len(linears):
            vector = [max(0.0, x) for x in vector]
    return vector


def test_forward_is_naumovs_formula_written_as_loops(model: DLRM) -> None:
    table = model.table.weight_RD.tolist()
    user, item, tags = LAYOUT.starts
    mean, scale = model.network.mean_F.tolist(), model.network.scale_F.tolist()
    expected = []
    for row in range(2):
        floats = [0.0 if math.isnan(x) else (x - m) * s for x, m, s in zip(DENSE[row], mean, scale, strict=True)]
        bottom = through(model.network.bottom, floats, last_relu=True)
        own_tags = [table[tags + tag] for tag in TAGS[row]]
        pooled = [sum(column) / len(own_tags) for column in zip(*own_tags, strict=True)] if own_tags else [0.0] * 4
        vectors = [bottom, table[user + USERS[row]], table[item + ITEMS[row]], pooled]
        pairs = [
            sum(a * b for a, b in zip(vectors[i], vectors[j], strict=True))
            for i in range(len(vectors))
            for j in range(i)
        ]
        expected += through(model.network.top, bottom + pairs, last_relu=False)
    logits = model(torch.tensor(DENSE), lookups())
    assert logits.tolist() == pytest.approx(expected, rel=1e-4)


def test_an_empty_list_pools_to_zeros(model: DLRM) -> None:
    pooled = model.table(lookups())
    assert pooled[5].tolist() == [0.0] * 4  # the tags of the second impression, behind four single ids and one list
    tag_rows = model.table.weight_RD[[8 + 3, 8 + 1]]
    assert pooled[4].tolist() == pytest.approx(tag_rows.mean(0).tolist())


def test_unknown_ids_start_at_zero_and_others_small() -> None:
    torch.manual_seed(0)
    weight = DLRM(LAYOUT, SECTION).table.weight_RD
    assert weight[list(LAYOUT.starts)].abs().max() == 0
    ordinary_rows = torch.tensor([row for row in range(LAYOUT.rows) if row not in LAYOUT.starts])
    assert 0 < weight[ordinary_rows].abs().max() < 0.1


def test_an_untrained_network_starts_around_the_base_rate(model: DLRM) -> None:
    model.network.set_base_rates(0.2)
    last = model.network.top[-1]
    assert isinstance(last, torch.nn.Linear)
    assert torch.sigmoid(last.bias).item() == pytest.approx(0.2)


def test_without_floats_a_learnt_bias_takes_their_place() -> None:
    torch.manual_seed(0)
    layout = Layout.from_features([TableFeature(name="item", kind="id", size=3)])
    model = DLRM(layout, SECTION)
    pooled = torch.ones(2, 4, requires_grad=True)
    model.network(torch.zeros(2, 1), pooled).sum().backward()
    assert pooled.grad is not None
    assert pooled.grad.abs().max() > 0  # the only table still reaches the output, through the bias vector


def test_without_ids_only_the_floats_count() -> None:
    torch.manual_seed(0)
    model = DLRM(Layout.from_features([TableFeature(name="age", kind="dense")]), SECTION).eval()
    none = Lookups(torch.empty(0).int(), torch.zeros(1).int(), None)
    expected = [through(model.network.top, through(model.network.bottom, [x], True), False)[0] for x in (1.0, 2.0)]
    assert model(torch.tensor([[1.0], [2.0]]), none).tolist() == pytest.approx(expected, rel=1e-5)


def test_bf16_is_for_training_and_never_for_scores() -> None:
    torch.manual_seed(0)
    model, plain = DLRM(LAYOUT, SECTION), DLRM(LAYOUT, SECTION)
    model.network.narrow = torch.bfloat16
    plain.load_state_dict(model.state_dict())
    dense = torch.tensor(DENSE)
    in_training = model.train()(dense, lookups())
    assert not torch.equal(in_training, plain.train()(dense, lookups()))
    torch.testing.assert_close(in_training, plain(dense, lookups()), rtol=0.05, atol=0.05)
    assert torch.equal(model.eval()(dense, lookups()), plain.eval()(dense, lookups()))


def test_only_hidden_layers_have_dropout() -> None:
    kinds = [type(layer).__name__ for layer in perceptron((4, 3, 2, 1), dropout=0.5)]
    assert kinds == ["Linear", "ReLU", "Dropout", "Linear", "ReLU", "Dropout", "Linear"]


def test_more_rows_than_int32_can_count_are_refused() -> None:
    features = [TableFeature(name=name, kind="id", size=2**30) for name in "ab"]
    with pytest.raises(ShortlistError, match="2,147,483,648 ids in all; the fused table holds at most 2,147,483,647"):
        Layout.from_features(features)


@pytest.mark.parametrize(
    ("rows", "starts", "expected"),
    [([4, 0, 4], [0, 1, 2, 3], [4, 0, 4]), ([4, 2], [0, 1, 1, 2], [4, None, 2])],
)
def test_a_slot_of_one_row_is_that_row_and_an_empty_one_is_zero(
    rows: list[int], starts: list[int], expected: list[int | None]
) -> None:
    weight = torch.arange(1.0, 11).view(5, 2)
    table = FusedTable.from_rows(weight, torch.zeros(5))
    vectors = table(Lookups(torch.tensor(rows).int(), torch.tensor(starts).int(), None))
    assert torch.equal(vectors, torch.stack([torch.zeros(2) if row is None else weight[row] for row in expected]))
