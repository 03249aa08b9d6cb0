"""One training step: look up, score, differentiate, update the perceptrons by Adam and the rows by Adagrad.

Three options can be set independently: the precision, whether the network is compiled, and whether the whole step is
replayed as a CUDA graph. A step never waits for a GPU; the loss stays on the GPU until it is read.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from inspect import unwrap
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

from models.embedding.network.embedding_model import EmbeddingModel
from models.embedding.reading.chunks import Batch, Lookups
from models.embedding.reading.padding import PaddedBatch, pad_batch
from models.embedding.table.optimizer import RowWiseAdagrad
from models.embedding.table.precision import Precision, matmul_precision, narrow_dtype, precision_of
from models.embedding.table.static_shape_adagrad import StaticShapeAdagrad
from models.embedding.training.losses import batch_loss
from models.embedding.training.order_loss import ORDER_LOSSES
from models.embedding_section import EmbeddingSection
from shortlist.contracts import ShortlistError


@runtime_checkable
class HostBackedTable(Protocol):
    """A table whose rows must be fetched to the device before a batch looks them up."""

    def prepare(self, lookups: Lookups) -> Lookups:
        """Fetch the rows of a batch to the device; return its look-ups by places on the device."""

    def look_up(self, lookups: Lookups) -> Tensor:
        """Return the weighted sum of every slot's rows, shape (slots, D), for a batch to score."""

    def flush(self) -> None:
        """Write changed rows back to the whole table."""

    def hit_rate(self) -> float | None:
        """Return the share of looked-up rows that were on the device since the last call, while training."""


class AdmissionFilter(Protocol):
    """Decides which rows may be updated."""

    def count_and_admit(self, lookups: Lookups) -> Tensor | None:
        """Count a batch; return for every look-up whether its row may be updated, bool, shape (L,); None: all may."""

    def state(self) -> dict[str, Tensor]:
        """Return the counts, by name."""

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""


class StepOptions(NamedTuple):
    """How a step is computed. Every option can be set alone; results agree up to rounding."""

    precision: Precision = "fp32"
    """Precision of products."""
    compiled: bool = False
    """Whether the network's part, forward and backward, is compiled by `torch.compile`."""
    graphs: bool = False
    """Whether the whole step is captured as a CUDA graph and replayed; needs a GPU, and `fixed_shapes`."""
    fixed_shapes: bool = False
    """Whether no shape in a step depends on the ids of its batch, so that the host never waits for the device."""
    fused: bool = False
    """Whether Triton kernels look up and update the embedding rows, and multiply the vectors of a row where these are
    narrow. Needs a GPU and Triton; shapes are fixed."""
    multiple: int = 1
    """Inputs of perceptrons are padded to a multiple of this width: tensor cores need rows of 16 bytes."""


def step_options(section: EmbeddingSection, device: str, visits: int = 0) -> StepOptions:
    """Return the options that a section declares on a device.

    Args:
        section: The model's section.
        device: "cpu" or "cuda".
        visits: Rows of the training days times epochs, as far as known; decides whether `compile: auto` compiles.

    Raises:
        ShortlistError: The device lacks the precision, or compiling is declared and impossible.
    """
    on_gpu = device == "cuda"
    # Compiled and recorded steps have batches of one label.
    compiling = not section.labels and should_compile(section, device, visits)
    graphs = on_gpu and section.cuda_graphs and not section.learns_order and not section.labels
    fused = on_gpu and not compile_obstacle(device)
    return StepOptions(precision_of(section, device), compiling, graphs, on_gpu, fused, 8 if on_gpu else 1)


class TrainingStep:
    """The training step of a model and its optimizers.

    Attributes:
        options: How steps are computed.
        scale: Scale of the loss, when products are in fp16; else None.
    """

    def __init__(self, model: EmbeddingModel, section: EmbeddingSection, options: StepOptions, device: str) -> None:
        """Create the step of a model on its device, changed in place; see `make_step`."""
        self.options = options
        self.scale = LossScale(device) if options.precision == "fp16" else None
        self._model = model
        self._rows = section.batch_size
        model.network.narrow, model.network.multiple = narrow_dtype(options.precision), options.multiple
        model.network.fused = model.table.fused = options.fused
        self._compiles = options.compiled
        self._loss_fn: Callable[..., Tensor] = compile_function(batch_loss) if options.compiled else batch_loss
        self._order_loss = ORDER_LOSSES.get(section.objective)
        assert self._order_loss is None or not (options.compiled or options.graphs), "pairs have no fixed shape"
        self._adam = make_adam(model, section, device)
        self._adagrad = row_optimizer(options)(
            model.table.weight_RD, model.table.squares_R, section.embedding_learning_rate, section.embedding_decay
        )

    def __call__(self, batch: Batch, admitted: Tensor | None = None) -> Tensor:
        """Train on a batch.

        Args:
            batch: The batch on the device; at most `batch_size` rows.
            admitted: Whether the row of each look-up may be updated, bool, shape (L,); None: all may.

        Returns:
            The mean loss of its rows before the step, no dimensions, on the device.
        """
        with matmul_precision(self.options.precision):
            return self.train_batch(self._pad(batch, admitted))

    def train_batch(self, batch: PaddedBatch) -> Tensor:
        """Train on a batch of the step's shapes, without waiting for a GPU."""
        if self._compiles:
            self._compiles = False
            with silence_compiler():
                return self.train_batch(batch)
        table, network = self._model.table, self._model.network
        pooled = table(batch.lookups)[: batch.slots].requires_grad_()
        if self._order_loss is None:
            loss = self._loss_fn(network, batch.dense_BF, pooled, batch.labels_B, batch.rows)
        else:
            assert batch.lists_B is not None, "the loader was not told of lists"
            loss = self._order_loss(network(batch.dense_BF, pooled), batch.labels_B, batch.lists_B)
        (loss if self.scale is None else self.scale.scale_loss(loss)).backward()  # type: ignore[no-untyped-call]
        assert pooled.grad is not None
        found_inf = None
        if self.scale is not None:
            gradients = [parameter.grad for parameter in self._model.parameters() if parameter.grad is not None]
            found_inf = self.scale.unscale([*gradients, pooled.grad])
            self._adam.found_inf = found_inf  # type: ignore[attr-defined] # what torch's own scaler tells fused optimizers
        self._adam.step()
        self._adam.zero_grad()
        self._adagrad.step(batch.lookups, pooled.grad, batch.admitted_L, found_inf)
        return loss.detach()

    def state(self) -> dict[str, Tensor]:
        """Return the state of the optimizer and the loss scale, by name."""
        adam_state = self._adam.state_dict()["state"]
        state = {
            f"adam.{i}.{name}": value
            for i, parameter_state in adam_state.items()
            for name, value in parameter_state.items()
        }
        return state | (self.scale.state() if self.scale is not None else {})

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        adam_state: dict[int, dict[str, Tensor]] = {}
        for key, value in state.items():
            prefix, _, key_in_optimizer = key.partition(".")
            if prefix == "adam":
                number, _, name = key_in_optimizer.partition(".")
                adam_state.setdefault(int(number), {})[name] = value
        self._adam.load_state_dict({**self._adam.state_dict(), "state": adam_state})
        if self.scale is not None:
            self.scale.restore(state)

    def _pad(self, batch: Batch, admitted: Tensor | None) -> PaddedBatch:
        """Return the batch in the shapes of this step."""
        if self.options.compiled:
            return pad_batch(batch, self._rows, self._model.network.singles, admitted)
        return PaddedBatch.unpadded(batch, admitted)


def row_optimizer(options: StepOptions) -> type[RowWiseAdagrad]:
    """Return the optimizer class of the embedding rows."""
    if options.fused:
        from models.embedding.table.fused_adagrad import (
            FusedAdagrad,  # needs Triton, which comes only with builds of torch for GPUs
        )

        return FusedAdagrad
    return StaticShapeAdagrad if options.fixed_shapes else RowWiseAdagrad


class _AdamW(torch.optim.AdamW):
    """torch's optimizer without its decorators for compiled steps: they import torch's compiler, which takes 2 s."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)


def make_adam(model: EmbeddingModel, section: EmbeddingSection, device: str) -> torch.optim.AdamW:
    """Return the optimizer of the perceptrons."""
    return _AdamW(
        model.parameters(), lr=section.learning_rate, weight_decay=section.weight_decay, fused=True,
        capturable=device == "cuda",
    )  # fmt: skip


_INITIAL_SCALE: Final = 2.0**16
_GROWTH: Final = 2.0
_BACKOFF: Final = 0.5
GOOD_STEPS: Final = 2_000
"""Steps without an overflow after which the scale doubles; all four as in `torch.amp.GradScaler`."""


class LossScale:
    """The rules of `torch.amp.GradScaler`, for perceptrons and embedding rows together, all on the device.

    torch's scaler waits for the device where an optimizer is not torch's; this one never waits, so that a step can be a
    CUDA graph.
    """

    def __init__(self, device: str, initial_scale: float = _INITIAL_SCALE, good_steps: int = GOOD_STEPS) -> None:
        self._good_steps = good_steps
        self._scale = torch.full((), initial_scale, device=device)
        self._steps_since_growth = torch.zeros((), dtype=torch.int32, device=device)
        self._found_inf = torch.zeros((), device=device)
        self._skipped_steps = torch.zeros((), device=device)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return the scaled loss, to be differentiated."""
        return loss * self._scale

    @torch.no_grad()
    def unscale(self, gradients: Sequence[Tensor]) -> Tensor:
        """Divide gradients by the scale in place, then update the scale.

        Args:
            gradients: Gradients of all weights that the step updates.

        Returns:
            1 when one of them is not finite and the step is skipped, else 0; on the device.
        """
        is_finite = torch.stack([gradient.isfinite().all() for gradient in gradients]).all()
        inverse = self._scale.reciprocal()
        for gradient in gradients:
            gradient.mul_(inverse)
        self._found_inf.copy_(~is_finite)
        good_steps = torch.where(is_finite, self._steps_since_growth + 1, 0)
        has_grown = good_steps == self._good_steps
        self._steps_since_growth.copy_(torch.where(has_grown, 0, good_steps))
        larger = self._scale * _GROWTH
        next_scale = torch.where(has_grown & larger.isfinite(), larger, self._scale)
        self._scale.copy_(torch.where(is_finite, next_scale, self._scale * _BACKOFF))
        self._skipped_steps.add_(self._found_inf)
        return self._found_inf

    def epoch_metrics(self) -> dict[str, float]:
        """Return the metrics of an epoch; waits for the device."""
        return {"loss_scale": float(self._scale), "skipped_steps": int(self._skipped_steps)}

    def state(self) -> dict[str, Tensor]:
        """Return the scale and its counters, by name."""
        return {
            "scale.scale": self._scale,
            "scale.growth": self._steps_since_growth,
            "scale.skipped": self._skipped_steps,
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])


F = TypeVar("F", bound=Callable[..., Any])

COMPILE_MIN_ROWS: Final = {"cpu": 100_000_000, "cuda": 1_000_000_000}
"""Visited rows from which on `compile: auto` compiles. Compiling saves about 0.5 us of processor time per row (3 % of a
step of 8 192 rows with perceptrons of 0.5 M weights; with wider ones the products take all the time), and costs some
20 s before the first step. On an H200 it saves 0.024 us per row, a quarter of the published configuration's step."""
_OLDEST_GPU: Final = (7, 0)
"""Least compute capability that torch's compiler supports."""


def should_compile(section: EmbeddingSection, device: str, visits: int) -> bool:
    """Return whether the network of a training is compiled: as declared, or, for `auto`, from many rows on.

    Args:
        section: The model's section.
        device: "cpu" or "cuda".
        visits: Rows of the training days times epochs.

    Raises:
        ShortlistError: Compiling is declared, and impossible on this machine.
    """
    if section.compile == "off" or section.learns_order:
        return False
    obstacle = compile_obstacle(device)
    if section.compile == "on" and obstacle:
        raise ShortlistError(
            f"compile is on, but {obstacle}. Install it (Debian: g++ and python3-dev), or declare compile: auto or off."
        )
    return section.compile == "on" or (not obstacle and visits >= COMPILE_MIN_ROWS[device])


def compile_function(function: F) -> F:
    """Return a function compiled for the shapes of its first call; other shapes are compiled again."""
    return cast(F, torch.compile(function, fullgraph=True, dynamic=False))


@contextmanager
def silence_compiler() -> Iterator[None]:
    """Silence the compiler's warnings during the first step, derivative included."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def compile_obstacle(device: str) -> str:
    """Return why this machine cannot compile, as the end of a sentence; empty: it can."""
    if os.environ.get("TORCHDYNAMO_DISABLE", "0") == "1":
        return "TORCHDYNAMO_DISABLE=1 forbids it, as in images without a compiler"
    if not any(map(shutil.which, (os.environ.get("CXX") or "g++", "clang++"))):
        return "there is no C++ compiler"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python's headers are missing"
    if device == "cuda" and find_spec("triton") is None:
        return "Triton, which compiles for GPUs, is not installed"
    if device == "cuda" and torch.cuda.get_device_capability() < _OLDEST_GPU:
        return "Triton compiles for no GPU as old as this one"
    return ""
