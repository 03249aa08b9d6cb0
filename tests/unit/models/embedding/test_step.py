"""Every variant of a training step gives the weights of the plain step; a fixed step never waits for a device."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from models.dlrm.network import DLRM
from models.dlrm.section import DLRMModel
from models.embedding.reading.chunks import Batch, Lookups
from models.embedding.reading.layout import Layout
from models.embedding.reading.padding import pad_batch
from models.embedding.table.precision import matmul_precision, precision_of
from models.embedding.training import step
from models.embedding.training.cuda_graphs import StepBuffers, make_step
from models.embedding.training.step import (
    COMPILE_MIN_ROWS,
    LossScale,
    StepOptions,
    TrainingStep,
    should_compile,
    step_options,
)
from shortlist.contracts import ShortlistError
from shortlist.ranking.inputs import TableFeature

SECTION = DLRMModel(
    features=("*",), embedding_dim=4, bottom_mlp=(8,), top_mlp=(16, 8), batch_size=16, learning_rate=0.01,
    embedding_learning_rate=0.1, weight_decay=0.01, embedding_decay=0.01,
)  # fmt: skip
SINGLES = [TableFeature(name="user", kind="id", size=9), TableFeature(name="item", kind="id", size=5)]
LISTS = [TableFeature(name="tags", kind="ids", size=7), TableFeature(name="words", kind="ids", size=6)]
FLOATS = [TableFeature(name=name, kind="dense") for name in "abc"]
LAYOUTS = {
    "singles": Layout.from_features([*SINGLES, *FLOATS]),
    "lists": Layout.from_features([*SINGLES, *LISTS, *FLOATS]),
}
PLAIN, FIXED = StepOptions(), StepOptions(fixed_shapes=True)


def a_batch(layout: Layout, rows: int, seed: int) -> Batch:
    """Random rows, in the order that `Lookups` promises."""
    random = torch.Generator().manual_seed(seed)
    labels = (torch.rand(rows, generator=random) < 0.3).float()
    dense = torch.randn(rows, layout.floats, generator=random)
    ids = [torch.randint(0, feature.size or 0, (rows,), generator=random) for feature in layout.singles]
    starts_of = dict(zip((feature.name for feature in layout.tables), layout.starts, strict=True))
    singles = torch.stack(
        [column + starts_of[feature.name] for column, feature in zip(ids, layout.singles, strict=True)], 1
    )
    if not layout.lists:
        return Batch(labels, dense, Lookups(singles.flatten().int(), torch.arange(singles.numel() + 1).int(), None))
    looked_up, lengths = [singles.flatten()], [torch.ones(singles.numel(), dtype=torch.int64)]
    for feature in layout.lists:
        lengths.append(torch.randint(0, 4, (rows,), generator=random))
        looked_up.append(
            torch.randint(0, feature.size or 0, (int(lengths[-1].sum()),), generator=random) + starts_of[feature.name]
        )
    length = torch.cat(lengths)
    starts = torch.nn.functional.pad(length.cumsum(0), (1, 0)).int()
    shares = torch.repeat_interleave(1 / length.clamp(min=1).float(), length)
    return Batch(labels, dense, Lookups(torch.cat(looked_up).int(), starts, shares))


def a_step(layout: Layout, options: StepOptions = PLAIN, section: DLRMModel = SECTION) -> tuple[DLRM, TrainingStep]:
    torch.manual_seed(0)
    model = DLRM(layout, section).train()
    return model, make_step(model, section, options, "cpu")


def weights(model: DLRM) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def static(step_of_model: TrainingStep, layout: Layout) -> Any:
    """Return the step as a CUDA graph takes it: from buffers of fixed shapes, some of them padding."""
    buffers = StepBuffers(a_batch(layout, 16, 99), 16, len(layout.singles))

    def take(batch: Batch, admitted: Tensor | None = None) -> Tensor:
        assert buffers.holds(batch)
        return step_of_model.train_batch(buffers.fill(batch, admitted))

    return take


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("variant", ["fixed", "padded", "buffers", "filled up"])
@pytest.mark.parametrize("masked", [False, True])
def test_every_way_learns_what_the_plain_one_learns(kind: str, variant: str, masked: bool) -> None:
    layout = LAYOUTS[kind]
    options = {"padded": StepOptions(), "filled up": StepOptions(multiple=8)}.get(variant, FIXED)
    (plain_model, plain), (model, tested_step) = a_step(layout), a_step(layout, options)
    take = static(tested_step, layout) if variant == "buffers" else tested_step
    if variant == "padded":
        take = lambda batch, admitted: tested_step.train_batch(pad_batch(batch, 16, len(layout.singles), admitted))  # noqa: E731
    learns = torch.arange(layout.rows) % 3 != 0
    for seed, rows in enumerate((16, 15, 16, 3, 9)):
        batch = a_batch(layout, rows, seed)
        admitted = learns[batch.lookups.rows_L.long()] if masked else None
        assert float(take(batch, admitted)) == pytest.approx(float(plain(batch, admitted)), abs=1e-6)
    for name, tensor in weights(model).items():
        torch.testing.assert_close(tensor, weights(plain_model)[name], rtol=1e-5, atol=2e-6)
    if masked:
        torch.manual_seed(0)
        assert torch.equal(model.table.weight_RD[~learns], DLRM(layout, SECTION).table.weight_RD[~learns])


def test_the_loss_of_a_short_batch_is_that_of_its_rows() -> None:
    layout = LAYOUTS["lists"]
    model, fixed = a_step(layout, FIXED)
    batch = a_batch(layout, 3, 5)
    alone = torch.nn.functional.binary_cross_entropy_with_logits(
        model(batch.dense_BF, batch.lookups), batch.labels_B
    ).item()
    buffers = StepBuffers(a_batch(layout, 16, 1), 16, 2)
    buffers.fill(a_batch(layout, 16, 2))  # what an earlier batch left must not count
    assert float(fixed.train_batch(buffers.fill(batch))) == pytest.approx(alone, abs=1e-6)


def test_buffers_say_when_a_batch_has_more_lookups_than_room() -> None:
    layout = LAYOUTS["lists"]
    small_batch = a_batch(layout, 1, 0)
    assert not StepBuffers(small_batch, 2, 2).holds(a_batch(layout, 16, 0))


WAITS = {
    "_local_scalar_dense", "nonzero", "nonzero_numpy", "_unique2", "unique_dim", "unique_consecutive", "masked_select",
    "repeat_interleave", "is_nonzero", "item", "equal", "_to_cpu", "bincount",
}  # fmt: skip


class NothingWaits(TorchDispatchMode):
    """Refuses what makes the host wait for a device: values that it asks for, shapes that depend on them, and numbers
    that it copies there (filling is no copy)."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if (name in WAITS and "output_size" not in (kwargs or {})) or by_mask:
            raise AssertionError(f"{name} waits for the device")
        if name == "copy_" and any(args[1] is number for number in self._numbers):
            raise AssertionError("a copy of a number waits for the device")
        output = func(*args, **(kwargs or {}))
        if name == "lift_fresh":  # the tensor of a Python number
            self._numbers.append(output)
        return output


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_nothing_in_a_fixed_step_waits(kind: str, precision: Any) -> None:
    layout = LAYOUTS[kind]
    _, fixed = a_step(layout, StepOptions(precision, fixed_shapes=True, multiple=8))
    take, batch = static(fixed, layout), a_batch(layout, 9, 0)
    with NothingWaits():
        take(batch, torch.ones(len(batch.lookups.rows_L), dtype=torch.bool))
        loss = fixed(batch)
    assert torch.isfinite(loss)


def test_a_copied_number_is_seen_to_wait() -> None:
    starts = torch.zeros(3)
    with NothingWaits(), pytest.raises(AssertionError, match="a copy of a number waits for the device"):
        starts[-1] = 7


@pytest.mark.parametrize("kind", LAYOUTS)
def test_the_plain_step_does_wait(kind: str) -> None:
    _, plain = a_step(LAYOUTS[kind])
    with NothingWaits(), pytest.raises(AssertionError, match="waits for the device"):
        plain(a_batch(LAYOUTS[kind], 9, 0))


def test_the_optimizer_is_torchs_without_its_compiler() -> None:
    layout = LAYOUTS["singles"]
    weights = {}
    for optimizer in (None, torch.optim.AdamW):
        model, plain = a_step(layout)
        if optimizer is not None:
            plain._adam = optimizer(model.parameters(), lr=SECTION.learning_rate, weight_decay=0.01, fused=True)
        for seed in range(5):
            plain(a_batch(layout, 16, seed))
        plain.restore(plain.state())
        plain(a_batch(layout, 16, 5))
        weights[optimizer] = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.equal(weights[None], weights[torch.optim.AdamW])
    code = """
import sys, torch
from models.dlrm.section import DLRMModel
from models.embedding.training.step import make_adam
model = torch.nn.Linear(2, 1)
adam = make_adam(model, DLRMModel(features=("*",)), "cpu")
model(torch.ones(1, 2)).sum().backward()
adam.step()
adam.zero_grad()
adam.load_state_dict(adam.state_dict())
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_fixed_step_needs_no_values_and_stays_on_its_device(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor on the meta device has no values to ask for, and refuses to meet one of the CPU."""
    monkeypatch.setattr(step, "make_adam", lambda model, *_: torch.optim.SGD(model.parameters(), lr=0.1, fused=False))
    layout = LAYOUTS[kind]
    model = DLRM(layout, SECTION).to("meta").train()
    fixed = TrainingStep(model, SECTION, StepOptions(fixed_shapes=True, multiple=8), "meta")
    batch = a_batch(layout, 9, 0).to("meta")
    buffers = StepBuffers(batch, 16, len(layout.singles))
    assert fixed.train_batch(buffers.fill(batch)).device.type == "meta"
    with pytest.raises((RuntimeError, NotImplementedError)):
        TrainingStep(model, SECTION, StepOptions(), "meta")(batch)
    with pytest.raises(RuntimeError, match="device"):
        fixed(batch._replace(dense_BF=torch.zeros(9, 3)))


@pytest.mark.parametrize("fixed", [False, True])
def test_fp16_halves_its_scale_and_skips_the_step_when_a_gradient_overflows(fixed: bool) -> None:
    layout = LAYOUTS["lists"]
    model, step_of_model = a_step(layout, StepOptions("fp16", fixed_shapes=fixed))
    assert step_of_model.scale is not None
    step_of_model(a_batch(layout, 16, 0))
    old_weights, line = weights(model), step_of_model.scale.epoch_metrics()
    assert line == {"loss_scale": 2.0**16, "skipped_steps": 0}
    step_of_model.scale = LossScale("cpu", initial_scale=2.0**40)
    step_of_model(a_batch(layout, 16, 1))
    assert step_of_model.scale.epoch_metrics() == {"loss_scale": 2.0**39, "skipped_steps": 1}
    assert all(torch.equal(tensor, old_weights[name]) for name, tensor in weights(model).items())  # embedding rows too
    step_of_model.scale = LossScale("cpu", initial_scale=2.0**10)
    step_of_model(a_batch(layout, 16, 1))
    new_weights = weights(model)
    assert not torch.equal(new_weights["table.weight_RD"], old_weights["table.weight_RD"])
    assert not torch.equal(new_weights["network.top.0.weight"], old_weights["network.top.0.weight"])


def test_the_scale_grows_after_enough_good_steps_like_that_of_torch() -> None:
    loss_scale = LossScale("cpu", initial_scale=8.0, good_steps=3)
    torchs = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for overflow in (0, 0, 0, 1, 0, 0, 1, 0, 0, 0):
        value = float("inf") if overflow else 1.0
        loss_scale.unscale([torch.full((2,), value), torch.ones(1)])
        weight.grad = torch.full((2,), value)
        torchs.scale(torch.ones(()))
        torchs.unscale_(optimizer)
        torchs.step(optimizer)
        torchs.update()
        assert loss_scale.epoch_metrics()["loss_scale"] == torchs.get_scale()


def test_fp16_learns_what_fp32_learns() -> None:
    layout = LAYOUTS["lists"]
    (_, wide), (_, narrow) = a_step(layout), a_step(layout, StepOptions("fp16", fixed_shapes=True))
    for seed in range(20):
        batch = a_batch(layout, 16, seed % 4)
        assert float(narrow(batch)) == pytest.approx(float(wide(batch)), abs=5e-3)


def test_tf32_is_for_the_step_alone() -> None:
    old_precision = torch.get_float32_matmul_precision()
    with matmul_precision("tf32"):
        assert torch.get_float32_matmul_precision() == "high"
        with matmul_precision("fp32"):
            assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == old_precision


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
def test_what_only_a_gpu_computes_is_refused_on_the_cpu(precision: str) -> None:
    section = SECTION.model_copy(update={"precision": precision})
    with pytest.raises(ShortlistError, match=f"precision is {precision}, which only NVIDIA GPUs compute; .* the cpu"):
        step_options(section, "cpu")
    assert precision_of(section, "cuda") == precision


def test_a_gpu_gets_every_switch_and_the_cpu_none(monkeypatch: pytest.MonkeyPatch) -> None:
    section = SECTION.model_copy(update={"precision": "bf16"})
    monkeypatch.setattr(step, "compile_obstacle", lambda device: "")
    all_of_them = StepOptions("bf16", graphs=True, fixed_shapes=True, fused=True, multiple=8)
    assert step_options(section, "cuda") == all_of_them
    monkeypatch.setattr(step, "compile_obstacle", lambda device: "there is no C++ compiler")
    assert step_options(section, "cuda") == all_of_them._replace(fused=False)
    assert not step_options(section.model_copy(update={"cuda_graphs": False}), "cuda").graphs
    assert step_options(section, "cpu") == StepOptions("bf16")


def test_compiling_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    on = SECTION.model_copy(update={"compile": "on"})
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    with pytest.raises(ShortlistError, match=r"compile is on, but TORCHDYNAMO_DISABLE=1 forbids it.*compile: auto"):
        should_compile(on, "cpu", 0)
    assert not should_compile(SECTION, "cpu", 10**20)  # auto does without
    monkeypatch.delenv("TORCHDYNAMO_DISABLE")
    monkeypatch.setattr(step.shutil, "which", lambda name: None)
    with pytest.raises(ShortlistError, match=r"there is no C\+\+ compiler\. Install it \(Debian: g\+\+"):
        should_compile(on, "cpu", 0)


@pytest.mark.parametrize("device", COMPILE_MIN_ROWS)
def test_auto_compiles_long_trainings(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "compile_obstacle", lambda device: "")
    assert [should_compile(SECTION, device, COMPILE_MIN_ROWS[device] + extra_rows) for extra_rows in (-1, 0)] == [
        False,
        True,
    ]
    assert should_compile(SECTION.model_copy(update={"compile": "on"}), "cpu", 0)
    assert not should_compile(SECTION.model_copy(update={"compile": "off"}), "cpu", 10**20)


@pytest.mark.long
@pytest.mark.skipif(bool(step.compile_obstacle("cpu")), reason="there is no C++ compiler")
def test_a_compiled_step_is_traced_once_and_learns_the_same() -> None:
    layout = LAYOUTS["lists"]
    torch.compiler.reset()
    (plain_model, plain), (model, fast) = a_step(layout), a_step(layout, StepOptions(compiled=True))
    for seed, rows in enumerate((16, 15, 16, 14)):
        batch = a_batch(layout, rows, seed)
        with torch.compiler.set_stance("fail_on_recompile" if seed else "default"):
            loss = float(fast(batch))
        assert loss == pytest.approx(float(plain(batch)), abs=1e-5)
    for name, tensor in weights(model).items():
        torch.testing.assert_close(tensor, weights(plain_model)[name], rtol=1e-4, atol=1e-5)
