"""Deep interest network: attention by hand, a planted history effect, and histories that it refuses."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor

from models.din.network import DIN, Attention, DINRanker, InterestNetwork
from models.din.section import DINModel
from models.dlrm.network import DLRMRanker
from models.dlrm.section import DLRMModel
from models.embedding.reading.chunks import Chunk, Lookups
from models.embedding.reading.layout import AttendedSequence, Layout
from models.embedding.training.losses import batch_loss
from models.embedding.training.step import silence_compiler
from shortlist.contracts import Columns, Files, ShortlistError
from shortlist.evaluation.metrics.pointwise import auc
from shortlist.ranking.inputs import TableFeature
from shortlist.ranking.saved_models import load_ranker
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable, DayTableWriter

ITEMS, LAST = 24, 4
MOMENT = pl.Datetime("us", "UTC")
COLUMNS: list[dict[str, Any]] = [
    {"name": "item_id", "kind": "id", "size": ITEMS},
    {"name": "past", "kind": "ids", "size": ITEMS, "events": LAST},
    {"name": "age", "kind": "dense"},
]
FEATURES = [TableFeature.model_validate(column) for column in COLUMNS]
SECTION: dict[str, Any] = {"features": ("age",), "history": "past", "target": "item_id", "embedding_dim": 8,
                           "batch_size": 200, "epochs": 6, "learning_rate": 0.01,
                           "embedding_learning_rate": 0.1}  # fmt: skip


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> DayTable:
    """Return a table in which an item is liked when the newest of the past ones is of its own group of six."""
    folder, random = tmp_path_factory.mktemp("followed"), np.random.default_rng(4)
    days = [datetime(2026, 1, 5, tzinfo=UTC).date() + timedelta(days=n) for n in range(5)]
    writer = DayTableWriter(folder / "table", Files.TABLE, chunk_rows=2_000)
    for number, day in enumerate(days):
        rows = 2_000
        item = random.integers(1, ITEMS, rows)
        past = [random.integers(1, ITEMS, random.integers(0, LAST + 1)) for _ in range(rows)]
        near = np.array(
            [
                len(past_items) > 0 and past_items[0] // 6 == group
                for past_items, group in zip(past, item // 6, strict=True)
            ]
        )
        label = (random.random(rows) < np.where(near, 0.85, 0.15)).astype(np.int8)
        writer.append(
            pl.DataFrame(
                {
                    Columns.LABEL: label,
                    Columns.TIME: pl.Series(
                        [datetime.combine(day, time(), UTC)] * rows, dtype=pl.Datetime("us", "UTC")
                    ),
                    Columns.DAY: [day] * rows,
                    Columns.IMPRESSION: np.arange(number * rows, (number + 1) * rows),
                    "item_id": pl.Series(item, dtype=pl.UInt32),
                    "past": pl.Series([past_items.tolist() for past_items in past], dtype=pl.List(pl.UInt32)),
                    "age": random.normal(0, 1, rows).astype(np.float32),
                }
            )
        )
    named = [str(day) for day in days]
    split = {"warmup": [], "train": named[:3], "validation": named[3:4], "test": named[4:]}
    return writer.close({"columns": COLUMNS, "split": split})


def needed_slots(network: InterestNetwork, dense: Tensor) -> Tensor:
    """Return which slots are looked up, of those that the loader gives."""
    slots = torch.arange(len(dense) * network.singles + 1, dtype=torch.int32)
    return network.select_lookups(Lookups(slots[:-1], slots, None), dense).rows_L


def test_rows(table: DayTable) -> pl.DataFrame:
    return pl.concat([frame for day, frame in table.frames() if day == table.days[-1].day])


test_rows.__test__ = False  # type: ignore[attr-defined] # a helper


def test_attention_finds_what_an_average_of_the_past_does_not(followed: DayTable, tmp_path: Path) -> None:
    runtime, rows = Runtime(engine="cpu", seed=3), test_rows(followed)
    labels = rows["label"].to_numpy().astype(float)
    din = DINRanker(DINModel.model_validate(SECTION))
    din.fit(followed, runtime)
    plain = {key: value for key, value in SECTION.items() if key not in ("history", "target")}
    dlrm = DLRMRanker(DLRMModel.model_validate({**plain, "features": ("*",)}))
    dlrm.fit(followed, runtime)
    scores = din.predict(rows)
    assert auc(labels, scores.astype(float)) > auc(labels, dlrm.predict(rows).astype(float)) + 0.03
    din.save(tmp_path / "model")
    np.testing.assert_array_equal(load_ranker(tmp_path / "model").predict(rows), scores)


def test_a_row_without_a_past_is_scored_and_padding_changes_no_score(followed: DayTable) -> None:
    section = DINModel.model_validate({**SECTION, "epochs": 1})
    ranker = DINRanker(section)
    ranker.fit(followed, Runtime(engine="cpu", seed=3))
    rows = test_rows(followed).head(200)
    empty = rows.with_columns(pl.lit([], dtype=pl.List(pl.UInt32)).alias("past"))
    none = rows.with_columns(pl.lit(None, dtype=pl.List(pl.UInt32)).alias("past"))
    assert np.isfinite(ranker.predict(empty)).all()
    np.testing.assert_array_equal(ranker.predict(empty), ranker.predict(none))
    # The weights of the padding row change no score.
    layout = Layout.from_features(FEATURES, (), AttendedSequence("past", "item_id"))
    expected = ranker.predict(rows)
    with torch.no_grad():
        ranker._model.table.weight_RD[layout.starts[layout.target]] += 100.0
    rows_of_known_items = rows.with_columns(
        pl.col("item_id").replace(0, 1), pl.col("past").list.filter(pl.element() > 0)
    )
    np.testing.assert_array_equal(ranker.predict(rows_of_known_items), expected)


def test_attention_is_a_softmax_over_the_events_there_are() -> None:
    attention = Attention(3, 1, ())
    with torch.no_grad():
        for parameter in attention.score.parameters():
            parameter.copy_(
                torch.tensor([[0.0, 0.0, 1.0]]) if parameter.ndim == 2 else torch.zeros(1)
            )  # item times past item
        attention.recency_L.copy_(torch.tensor([0.0, 0.5, 9.0]))
    item, past = torch.tensor([[2.0], [2.0]]), torch.tensor([[[1.0], [3.0], [50.0]]] * 2)
    attended: Tensor = attention(item, past, torch.tensor([[True, True, False], [False] * 3]))
    weights = np.exp([2 * 1, 2 * 3 + 0.5]) / np.exp([2 * 1, 2 * 3 + 0.5]).sum()
    np.testing.assert_allclose(attended.detach().numpy(), [[weights @ [1.0, 3.0]], [0.0]], rtol=1e-6)


@pytest.mark.parametrize("lengths", [[3, 0, 1, 4, 2], [0, 0], [4]], ids=str)
def test_places_without_an_event_are_not_computed_and_nothing_else_differs(lengths: list[int]) -> None:
    """Where shapes may not depend on the lengths, as in a compiled step or on a GPU, all places are computed."""
    torch.manual_seed(5)
    attention, rows = Attention(LAST, 3, (6,)).double(), len(lengths)
    item, past = torch.randn(rows, 3).double(), torch.randn(rows, LAST, 3).double()
    wanted_by = torch.randn(rows, 3).double()
    is_event = torch.arange(LAST) < torch.tensor(lengths).unsqueeze(1)

    def of_events(item: Tensor, past: Tensor) -> Tensor:
        events = past[is_event]
        padded = torch.cat([events, torch.zeros(2, 3).double()])
        attended: Tensor = attention.forward_events(item, events, padded, is_event)
        return attended

    values_of_forwards = []
    for forward in (of_events, lambda *inputs: attention(*inputs, is_event)):
        attention.zero_grad()
        inputs = item.clone().requires_grad_(), past.clone().requires_grad_()
        attended = forward(*inputs)
        (attended * wanted_by).sum().backward()
        gradients = [tensor.grad for tensor in (*inputs, *attention.parameters())]
        values_of_forwards.append([attended.detach(), *(gradient for gradient in gradients if gradient is not None)])
    for of_events_only, of_all_places in zip(*values_of_forwards, strict=True):
        torch.testing.assert_close(of_events_only, of_all_places, rtol=1e-12, atol=1e-12)
    assert (values_of_forwards[0][2][~is_event] == 0).all()  # the gradient of places without an event


def test_a_step_can_be_compiled_as_shapes_do_not_depend_on_the_lengths() -> None:
    features = [TableFeature(name="page", kind="id", size=5), *FEATURES]
    layout = Layout.from_features(features, (), AttendedSequence("past", "item_id"))
    torch.manual_seed(2)
    network = DIN(layout, DINModel.model_validate(SECTION)).train().network
    rows = 16
    dense = torch.stack([torch.randn(rows), torch.randint(0, LAST + 1, (rows,)).float()], dim=1)
    pooled, labels = torch.randn(rows * layout.slots, 8), (torch.rand(rows) < 0.5).float()
    compiled = torch.compile(batch_loss, fullgraph=True, dynamic=False, backend="eager")
    values = []
    for loss, read in ((batch_loss, needed_slots(network, dense)), (compiled, torch.arange(len(pooled)))):
        network.zero_grad()
        slots = pooled.clone().requires_grad_()
        with silence_compiler():
            value = loss(network, dense, slots[read], labels, torch.tensor(rows))
            value.backward()
        values.append((value.detach(), slots.grad, *(parameter.grad for parameter in network.parameters())))
    torch.testing.assert_close(values[0], values[1])


def test_narrow_products_change_little() -> None:
    layout = Layout.from_features(
        [TableFeature(name="page", kind="id", size=5), *FEATURES], (), AttendedSequence("past", "item_id")
    )
    torch.manual_seed(2)
    network = DIN(layout, DINModel.model_validate(SECTION)).train().network
    rows, values = 2_000, []
    dense = torch.stack([torch.randn(rows), torch.randint(0, LAST + 1, (rows,)).float()], dim=1)
    pooled = torch.randn(rows * layout.slots, 8)[needed_slots(network, dense)].requires_grad_()
    # A constant that is added to all logits changes no softmax: the last bias has no gradient.
    learnt = [parameter for name, parameter in network.named_parameters() if name != "attention.score.2.bias"]
    for network.narrow in (None, torch.bfloat16):
        logits = network(dense, pooled)
        values.append((logits.detach(), *torch.autograd.grad(logits.sum(), [pooled, *learnt])))
    for exact, narrow in zip(*values, strict=True):
        assert narrow.dtype is torch.float32
        assert (narrow - exact).norm() <= 0.1 * exact.norm()  # a unit that bf16 switches off or on has a share, too


def test_a_history_is_looked_up_in_the_table_of_its_target() -> None:
    features = [TableFeature(name="page", kind="id", size=5), *FEATURES]
    layout = Layout.from_features(features, (), AttendedSequence("past", "item_id"))
    assert (layout.rows, layout.slots, layout.floats, layout.lists) == (5 + ITEMS, 2 + LAST, 2, ())
    frame = pl.DataFrame(
        {"page": [1, 2], "item_id": [7, 8], "age": [0.5, 1.5], "past": [[9, 3], []]},
        schema={"page": pl.UInt32, "item_id": pl.UInt32, "age": pl.Float32, "past": pl.List(pl.UInt32)},
    )
    chunk = Chunk.decoded(frame, layout)
    assert chunk.singles.tolist() == [[1, 5 + 7, 5 + 9, 5 + 3, 5, 5], [2, 5 + 8, 5, 5, 5, 5]]
    assert chunk.dense.tolist() == [[0.5, 2.0], [1.5, 0.0]]
    batch = chunk.batch(0, 2)
    rows, starts, shares = DIN(layout, DINModel.model_validate(SECTION)).network.select_lookups(
        batch.lookups, batch.dense_BF
    )
    assert (rows.tolist(), shares) == ([1, 5 + 7, 2, 5 + 8, 5 + 9, 5 + 3], None)  # places without an event are left out
    assert starts.tolist() == list(range(7))


def test_a_list_beside_the_history_is_looked_up_behind_its_events() -> None:
    features = [*FEATURES, TableFeature(name="words", kind="ids", size=7)]
    layout = Layout.from_features(features, (), AttendedSequence("past", "item_id"))
    frame = pl.DataFrame(
        {"item_id": [7, 8], "age": [0.5, 1.5], "past": [[9, 3], []], "words": [[2, 4], [6]]},
        schema={"item_id": pl.UInt32, "age": pl.Float32, "past": pl.List(pl.UInt32), "words": pl.List(pl.UInt32)},
    )
    model = DIN(layout, DINModel.model_validate(SECTION)).eval()
    batch = Chunk.decoded(frame, layout).batch(0, 2)
    needed_lookups = batch.with_lookups_for(model.network.select_lookups).lookups
    assert needed_lookups.rows_L.tolist() == [7, 8, 9, 3, ITEMS + 2, ITEMS + 4, ITEMS + 6]
    assert needed_lookups.starts.tolist() == [0, 1, 2, 3, 4, 6, 7]
    assert needed_lookups.shares_L is not None
    assert needed_lookups.shares_L.tolist() == [1, 1, 1, 1, 0.5, 0.5, 1]
    first = Chunk.decoded(frame.head(1), layout).batch(0, 1)
    torch.testing.assert_close(model(batch.dense_BF, batch.lookups)[:1], model(first.dense_BF, first.lookups))


@pytest.mark.parametrize(
    ("attended", "size", "message"),
    [
        (AttendedSequence("age", "item_id"), ITEMS, "history: 'age' is no feature of kind sequence"),
        (AttendedSequence("past", "age"), ITEMS, "target: 'age' has no one id per row"),
        (
            AttendedSequence("past", "item_id"),
            9,
            "target: 'item_id' has 9 ids, and history 'past' 24; both look up one table",
        ),
    ],
)
def test_a_history_and_a_target_that_do_not_go_together(attended: AttendedSequence, size: int, message: str) -> None:
    features = [
        feature.model_copy(update={"size": size}) if feature.name == "item_id" else feature for feature in FEATURES
    ]
    with pytest.raises(ShortlistError, match=message):
        Layout.from_features(features, (), attended)
