"""One step of a DLRM's training: look up, score, derive, move the perceptrons by Adam and the rows by Adagrad.

There is one step and there are three switches on it, so that what each buys can be measured: its precision, whether the
network is compiled, and whether the whole step is replayed as a CUDA graph. Nothing in a step on a GPU waits for the
GPU; what it learnt (the loss) stays there until somebody asks.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

from models.embedding.chunks import Batch, Lookups
from models.embedding.embedding_model import EmbeddingModel, EmbeddingNetwork
from models.embedding.optimizer import RowWiseAdagrad
from models.embedding.order_loss import ORDER_LOSSES
from models.embedding.padding import Padded, padded
from models.embedding.precision import Precision, matmul_precision, narrow, precision_of
from models.embedding.static_shape_adagrad import StaticShapeAdagrad
from models.embedding.weighted_labels import weighted_log_loss
from models.embedding_section import EmbeddingSection
from shortlist.contracts import ShortlistError


@runtime_checkable
class HostBackedTable(Protocol):
    """A table whose rows must be brought to the device before a batch looks them up."""

    def prepare(self, lookups: Lookups) -> Lookups:
        """Bring the rows of a batch to the device; return its lookups by their places there."""

    def look_up(self, lookups: Lookups) -> Tensor:
        """Return the weighted sum of every slot's rows, shape (slots, D), of a batch to be scored."""

    def flush(self) -> None:
        """Write moved rows back to where the whole table lies."""

    def hit_rate(self) -> float | None:
        """Return the share of looked-up rows that were on the device since the last call, while training."""


class AdmissionFilter(Protocol):
    """Says which rows may learn already."""

    def admitted(self, lookups: Lookups) -> Tensor | None:
        """Count a batch; return for every lookup whether its row may move, bool, shape (L,); None: all may."""

    def state(self) -> dict[str, Tensor]:
        """Return what it has counted, by name."""

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""


class StepOptions(NamedTuple):
    """How a step is computed. Every switch can be set alone; results agree up to rounding."""

    precision: Precision = "fp32"
    """What products are computed in."""
    compiled: bool = False
    """Whether the network's part, forward and backward, is compiled by `torch.compile`."""
    graphs: bool = False
    """Whether the whole step is captured as a CUDA graph and replayed; needs a GPU, and `fixed_shapes`."""
    fixed_shapes: bool = False
    """Whether no shape in a step depends on the ids of its batch, so that the host never waits for the device."""
    fused: bool = False
    """Whether kernels of our own look up and move the embedding rows, and multiply the vectors of a row where these are
    narrow. Needs a GPU and Triton; shapes are fixed."""
    multiple: int = 1
    """What the widths of the perceptrons' inputs are filled up to a multiple of: tensor cores want rows of 16 bytes."""


def step_options(section: EmbeddingSection, device: str, visits: int = 0) -> StepOptions:
    """Return the options that a section declares on a device.

    Args:
        section: The model's section.
        device: "cpu" or "cuda".
        visits: Rows of the training days times epochs, as far as known; decides whether `compile: auto` pays.

    Raises:
        ShortlistError: The device has no such arithmetic, or compiling was declared and cannot be done.
    """
    on_gpu = device == "cuda"
    # A batch of several labels is not of the shape that compiled steps and recorded ones have.
    compiling = not section.labels and pays(section, device, visits)
    graphs = on_gpu and section.cuda_graphs and not section.learns_order and not section.labels
    fused = on_gpu and not missing(device)
    return StepOptions(precision_of(section, device), compiling, graphs, on_gpu, fused, 8 if on_gpu else 1)


class Step:
    """Takes steps, one batch after the other.

    Attributes:
        options: How steps are computed.
        scale: Of the loss, when products are in fp16; else None.
    """

    def __init__(self, model: EmbeddingModel, section: EmbeddingSection, options: StepOptions, device: str) -> None:
        """Take a model on its device, changed in place; see `make_step`."""
        self.options = options
        self.scale = LossScale(device) if options.precision == "fp16" else None
        self._model = model
        self._rows = section.batch_size
        model.network.narrow, model.network.multiple = narrow(options.precision), options.multiple
        model.network.fused = model.table.fused = options.fused
        self._compiles = options.compiled
        self._lesson: Callable[..., Tensor] = compiled(batch_loss) if options.compiled else batch_loss
        self._order_loss = ORDER_LOSSES.get(section.objective)
        assert self._order_loss is None or not (options.compiled or options.graphs), "pairs have no fixed shape"
        self._adam = make_adam(model, section, device)
        self._adagrad = row_optimizer(options)(
            model.table.weight_RD, model.table.squares_R, section.embedding_learning_rate, section.embedding_decay
        )

    def __call__(self, batch: Batch, admitted: Tensor | None = None) -> Tensor:
        """Learn from a batch.

        Args:
            batch: On the device; at most `batch_size` rows.
            admitted: Which lookups' rows may move, bool, shape (L,); None: all.

        Returns:
            The mean loss of its rows before the step, no dimensions, on the device.
        """
        with matmul_precision(self.options.precision):
            return self.take(self._fitted(batch, admitted))

    def take(self, batch: Padded) -> Tensor:
        """Learn from a batch of the step's shapes; on a GPU nothing in here waits for it."""
        if self._compiles:
            self._compiles = False
            with silenced():
                return self.take(batch)
        table, network = self._model.table, self._model.network
        pooled = table(batch.lookups)[: batch.slots].requires_grad_()
        if self._order_loss is None:
            loss = self._lesson(network, batch.dense_BF, pooled, batch.labels_B, batch.rows)
        else:
            assert batch.lists_B is not None, "the loader was not told of lists"
            loss = self._order_loss(network(batch.dense_BF, pooled), batch.labels_B, batch.lists_B)
        (loss if self.scale is None else self.scale.scaled(loss)).backward()  # type: ignore[no-untyped-call]
        assert pooled.grad is not None
        astray = None
        if self.scale is not None:
            gradients = [one.grad for one in self._model.parameters() if one.grad is not None]
            astray = self.scale.unscale([*gradients, pooled.grad])
            self._adam.found_inf = astray  # type: ignore[attr-defined] # what torch's own scaler tells fused optimizers
        self._adam.step()
        self._adam.zero_grad()
        self._adagrad.step(batch.lookups, pooled.grad, batch.admitted_L, astray)
        return loss.detach()

    def state(self) -> dict[str, Tensor]:
        """Return what the optimizer and the scale remember beside the weights, by name."""
        remembered = self._adam.state_dict()["state"]
        state = {f"adam.{i}.{name}": value for i, one in remembered.items() for name, value in one.items()}
        return state | (self.scale.state() if self.scale is not None else {})

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        found: dict[int, dict[str, Tensor]] = {}
        for key, value in state.items():
            owner, _, rest = key.partition(".")
            if owner == "adam":
                number, _, name = rest.partition(".")
                found.setdefault(int(number), {})[name] = value
        self._adam.load_state_dict({**self._adam.state_dict(), "state": found})
        if self.scale is not None:
            self.scale.restore(state)

    def _fitted(self, batch: Batch, admitted: Tensor | None) -> Padded:
        """Return the batch in the shapes that this step computes with."""
        if self.options.compiled:
            return padded(batch, self._rows, self._model.network.singles, admitted)
        return Padded.whole(batch, admitted)


def row_optimizer(options: StepOptions) -> type[RowWiseAdagrad]:
    """Return what moves the embedding rows."""
    if options.fused:
        from models.embedding.fused_adagrad import (
            FusedAdagrad,  # needs Triton, which only builds of torch for GPUs bring
        )

        return FusedAdagrad
    return StaticShapeAdagrad if options.fixed_shapes else RowWiseAdagrad


def make_adam(model: EmbeddingModel, section: EmbeddingSection, device: str) -> torch.optim.AdamW:
    """Return the optimizer of the perceptrons."""
    return torch.optim.AdamW(
        model.parameters(), lr=section.learning_rate, weight_decay=section.weight_decay, fused=True,
        capturable=device == "cuda",
    )  # fmt: skip


def batch_loss(
    network: EmbeddingNetwork, dense_BF: Tensor, pooled: Tensor, labels_B: Tensor, rows: Tensor | None
) -> Tensor:
    """Return the mean log loss of a batch's rows.

    Args:
        network: The network.
        dense_BF: Floats.
        pooled: What the table gave.
        labels_B: 0 or 1; or with weights, see `weighted_labels`. Shape (B, H) with further labels: the loss is then the
            mean over labels too.
        rows: How many of the rows count, the first ones; None: all.
    """
    logits_B = network(dense_BF, pooled)
    if rows is None:
        return weighted_log_loss(logits_B, labels_B, "mean")
    losses_B = weighted_log_loss(logits_B, labels_B, "none")
    counts_B = torch.arange(len(labels_B), device=labels_B.device) < rows
    return torch.where(counts_B, losses_B, 0.0).sum() / rows


_FIRST: Final = 2.0**16
_GROWTH: Final = 2.0
_BACKOFF: Final = 0.5
GOOD_STEPS: Final = 2_000
"""Steps without an overflow after which the scale doubles; all four as in `torch.amp.GradScaler`."""


class LossScale:
    """The rules of `torch.amp.GradScaler`, for the perceptrons and the embedding rows together, all on the device.

    torch's own asks the device for the verdict where an optimizer is not its own; here nobody waits for it, so that a
    step can be a CUDA graph.
    """

    def __init__(self, device: str, first: float = _FIRST, good_steps: int = GOOD_STEPS) -> None:
        self._good_steps = good_steps
        self._scale = torch.full((), first, device=device)
        self._growth = torch.zeros((), dtype=torch.int32, device=device)
        self._astray = torch.zeros((), device=device)
        self._skipped = torch.zeros((), device=device)

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss to derive."""
        return loss * self._scale

    @torch.no_grad()
    def unscale(self, gradients: Sequence[Tensor]) -> Tensor:
        """Divide gradients by the scale in place, then move the scale.

        Args:
            gradients: Of everything that the step would move.

        Returns:
            1 when one of them is no finite number and nothing may move, else 0; on the device.
        """
        is_finite = torch.stack([gradient.isfinite().all() for gradient in gradients]).all()
        inverse = self._scale.reciprocal()
        for gradient in gradients:
            gradient.mul_(inverse)
        self._astray.copy_(~is_finite)
        good_steps = torch.where(is_finite, self._growth + 1, 0)
        has_grown = good_steps == self._good_steps
        self._growth.copy_(torch.where(has_grown, 0, good_steps))
        larger = self._scale * _GROWTH
        grown = torch.where(has_grown & larger.isfinite(), larger, self._scale)
        self._scale.copy_(torch.where(is_finite, grown, self._scale * _BACKOFF))
        self._skipped.add_(self._astray)
        return self._astray

    def line(self) -> dict[str, float]:
        """Return what a line of the history says; waits for the device."""
        return {"loss_scale": float(self._scale), "skipped_steps": int(self._skipped)}

    def state(self) -> dict[str, Tensor]:
        """Return what it remembers, by name."""
        return {"scale.scale": self._scale, "scale.growth": self._growth, "scale.skipped": self._skipped}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        for name, own in self.state().items():
            own.copy_(state[name])


F = TypeVar("F", bound=Callable[..., Any])

PAYS_FROM: Final = {"cpu": 100_000_000, "cuda": 1_000_000_000}
"""Visited rows. Compiling spares about 0.5 us of processor time per row (3 % of a step of 8 192 rows with perceptrons
of 0.5 M weights; with wider ones the products take all the time), and costs some 20 s before the first step. On an H200
it spares 0.024 us of a row, a quarter of the published configuration's step."""
_OLDEST_GPU: Final = (7, 0)
"""Compute capability that torch's compiler asks for."""


def pays(section: EmbeddingSection, device: str, visits: int) -> bool:
    """Return whether the network of a training is to be compiled: as declared, or where it pays.

    Args:
        section: The model's section.
        device: "cpu" or "cuda".
        visits: Rows of the training days times epochs.

    Raises:
        ShortlistError: It is declared, and cannot be done here.
    """
    if section.compile == "off" or section.learns_order:
        return False
    lacking = missing(device)
    if section.compile == "on" and lacking:
        raise ShortlistError(
            f"compile is on, but {lacking}. Install it (Debian: g++ and python3-dev), or declare compile: auto or off."
        )
    return section.compile == "on" or (not lacking and visits >= PAYS_FROM[device])


def compiled(function: F) -> F:
    """Return a function compiled for the shapes of its first call; other shapes are compiled anew."""
    return cast(F, torch.compile(function, fullgraph=True, dynamic=False))


@contextmanager
def silenced() -> Iterator[None]:
    """Silence what the compiler says of itself, while a first step is taken: its derivative is compiled last."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def missing(device: str) -> str:
    """Return what compiling lacks on this machine, as the end of a sentence; empty: nothing."""
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
