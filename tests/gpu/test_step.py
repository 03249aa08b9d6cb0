"""The training step on a GPU: every variant gives the losses of the CPU; recorded graphs and loss scales."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models.dlrm.network import DLRM
from models.dlrm.section import DLRMModel
from models.embedding.reading.chunks import Batch, Lookups
from models.embedding.reading.layout import Layout
from models.embedding.table.precision import precision_of
from models.embedding.training.cuda_graphs import make_step
from models.embedding.training.step import LossScale, StepOptions, TrainingStep, step_options
from shortlist.ranking.inputs import TableFeature

pytestmark = pytest.mark.gpu
ROWS = 256
SECTION = DLRMModel(
    features=("*",), embedding_dim=16, bottom_mlp=(64,), top_mlp=(64, 32), batch_size=ROWS, learning_rate=0.003,
    embedding_learning_rate=0.05, embedding_decay=0.001,
)  # fmt: skip
SINGLES = [TableFeature(name=f"id_{size}", kind="id", size=size) for size in (3, 50, 10_000)]
LISTS = [TableFeature(name="tags", kind="ids", size=40)]
FLOATS = [TableFeature(name=name, kind="dense") for name in "abcde"]
LAYOUTS = {
    "singles": Layout.from_features([*SINGLES, *FLOATS]),
    "lists": Layout.from_features([*SINGLES, *LISTS, *FLOATS]),
}
TOLERANCE = {"fp32": 1e-4, "tf32": 2e-3, "bf16": 1e-2, "fp16": 5e-3}
"""How far the log loss of a step may be from float32's on the CPU, over twenty steps."""
_FIXED = StepOptions(fixed_shapes=True, fused=True, multiple=8)
VARIANTS = {
    "eager": _FIXED,
    "compiled": _FIXED._replace(compiled=True),
    "graphs": _FIXED._replace(graphs=True),
    "graphs, not fused": _FIXED._replace(graphs=True, fused=False),
    "compiled graphs": _FIXED._replace(compiled=True, graphs=True),
}


def a_batch(layout: Layout, rows: int, seed: int) -> Batch:
    """Rows whose label hangs on an id and a float, so that there is something to learn."""
    random = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, feature.size or 0, (rows,), generator=random) for feature in layout.singles]
    dense = torch.randn(rows, layout.floats, generator=random)
    chance = torch.sigmoid(2.0 * (ids[1] % 3 - 1) + dense[:, 0])
    labels = (torch.rand(rows, generator=random) < chance).float()
    singles = torch.stack([column + start for column, start in zip(ids, layout.starts, strict=False)], 1).flatten()
    if not layout.lists:
        return Batch(labels, dense, Lookups(singles.int(), torch.arange(len(singles) + 1).int(), None))
    length = torch.randint(0, 6, (rows,), generator=random)
    tags = torch.randint(0, 40, (int(length.sum()),), generator=random) + layout.starts[-1]
    lengths = torch.cat([torch.ones(len(singles), dtype=torch.int64), length])
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    shares = torch.repeat_interleave(1 / lengths.clamp(min=1).float(), lengths)
    return Batch(labels, dense, Lookups(torch.cat([singles, tags]).int(), starts, shares))


def a_step(
    layout: Layout, options: StepOptions, device: str, section: DLRMModel = SECTION
) -> tuple[DLRM, TrainingStep]:
    torch.manual_seed(0)
    model = DLRM(layout, section).to(device).train()
    return model, make_step(model, section, options, device)


def batches(layout: Layout) -> list[Batch]:
    return [a_batch(layout, ROWS - step % 3, step) for step in range(20)]


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("precision", TOLERANCE)
def test_every_way_has_the_losses_of_the_cpu(kind: str, variant: str, precision: Any) -> None:
    layout = LAYOUTS[kind]
    _, reference = a_step(layout, StepOptions(), "cpu")
    _, gpu_step = a_step(layout, VARIANTS[variant]._replace(precision=precision), "cuda")
    losses = [(float(gpu_step(batch.to("cuda"))), float(reference(batch))) for batch in batches(layout)]
    assert losses[-1][1] < losses[0][1]  # there was something to learn
    for on_gpu, on_cpu in losses:
        assert on_gpu == pytest.approx(on_cpu, abs=TOLERANCE[precision])


def test_a_gpu_gets_every_switch() -> None:
    assert step_options(SECTION, "cuda") == VARIANTS["graphs"]._replace(precision=precision_of(SECTION, "cuda"))


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("variant", ["graphs", "graphs, not fused"])
def test_the_weights_are_those_of_the_cpu(kind: str, variant: str) -> None:
    layout = LAYOUTS[kind]
    (plain, reference), (model, gpu_step) = (
        a_step(layout, StepOptions(), "cpu"),
        a_step(layout, VARIANTS[variant], "cuda"),
    )
    for batch in batches(layout):
        reference(batch), gpu_step(batch.to("cuda"))
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name].cpu(), tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("variant", ["graphs", "graphs, not fused"])
def test_the_same_batches_move_the_embedding_rows_to_the_same_bits(variant: str) -> None:
    layout = LAYOUTS["lists"]
    tables = []
    for _ in range(2):
        model, gpu_step = a_step(layout, VARIANTS[variant], "cuda")
        for batch in batches(layout):
            gpu_step(batch.to("cuda"))
        tables.append(model.table.weight_RD.cpu())
    assert torch.equal(*tables)


def test_a_batch_with_more_lookups_than_room_is_recorded_anew() -> None:
    layout = LAYOUTS["lists"]
    (_, eager), (_, graph_step) = a_step(layout, VARIANTS["eager"], "cuda"), a_step(layout, VARIANTS["graphs"], "cuda")
    small_batches = [a_batch(layout, ROWS, step) for step in range(5)]
    small_batches = [_without_tags(batch) for batch in small_batches]
    for batch in [*small_batches, *batches(layout)]:
        gpu_batch = batch.to("cuda")
        assert float(graph_step(gpu_batch)) == pytest.approx(float(eager(gpu_batch)), abs=1e-4)


def _without_tags(batch: Batch) -> Batch:
    ids = ROWS * len(SINGLES)
    starts = batch.lookups.starts.clamp(max=ids)
    assert batch.lookups.shares_L is not None
    return batch._replace(lookups=Lookups(batch.lookups.rows_L[:ids], starts, batch.lookups.shares_L[:ids]))


def test_a_replayed_step_drops_other_units_every_time() -> None:
    section = SECTION.model_copy(update={"dropout": 0.5, "learning_rate": 1e-12, "embedding_learning_rate": 1e-12})
    _, graph_step = a_step(LAYOUTS["singles"], VARIANTS["graphs"], "cuda", section)
    batch = a_batch(LAYOUTS["singles"], ROWS, 0).to("cuda")
    losses = {float(graph_step(batch)) for _ in range(10)}  # the fifth and later ones are replayed
    assert len(losses) == 10


@pytest.mark.parametrize("variant", ["eager", "graphs", "graphs, not fused"])
def test_a_step_does_not_wait_for_the_gpu(variant: str) -> None:
    layout = LAYOUTS["lists"]
    _, gpu_step = a_step(layout, VARIANTS[variant], "cuda")
    gpu_batches = [batch.to("cuda") for batch in batches(layout)]
    for batch in gpu_batches[:8]:  # kernels are chosen, the graph is recorded
        gpu_step(batch)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in gpu_batches[8:]:
            gpu_step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("variant", ["graphs", "graphs, not fused"])
def test_rows_that_may_not_move_do_not_when_replayed(variant: str) -> None:
    layout = LAYOUTS["lists"]
    model, gpu_step = a_step(layout, VARIANTS[variant], "cuda")
    old_weight = model.table.weight_RD.clone()
    learns = torch.arange(layout.rows, device="cuda") % 2 == 0
    for batch in batches(layout):
        gpu_batch = batch.to("cuda")
        gpu_step(gpu_batch, learns[gpu_batch.lookups.rows_L.long()])
    moved = (model.table.weight_RD != old_weight).any(1)
    assert moved.any() and not moved[~learns].any()


@pytest.mark.parametrize("variant", ["eager", "graphs", "graphs, not fused"])
def test_an_overflow_in_fp16_skips_the_whole_step(variant: str) -> None:
    layout = LAYOUTS["singles"]
    model, gpu_step = a_step(layout, VARIANTS[variant]._replace(precision="fp16"), "cuda")
    gpu_step.scale = LossScale("cuda", initial_scale=2.0**40)
    old_weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for batch in batches(layout)[:6]:
        gpu_step(batch.to("cuda"))
    assert gpu_step.scale.epoch_metrics() == {"loss_scale": 2.0**34, "skipped_steps": 6}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, old_weights[name]), name
