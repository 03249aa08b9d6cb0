"""One step of a DLRM's training: look up, score, derive, move the perceptrons by Adam and the rows by Adagrad.

There is one step and there are three switches on it, so that what each buys can be measured: its precision, whether the
network is compiled, and whether the whole step is replayed as a CUDA graph. Nothing in a step on a GPU waits for the
GPU; what it learnt (the loss) stays there until somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from models.dlrm.batch_loss import batch_loss
from models.dlrm.chunks import Batch, Lookups
from models.dlrm.compiling import compiled, pays, silenced
from models.dlrm.embedding_model import EmbeddingModel
from models.dlrm.embedding_section import EmbeddingSection
from models.dlrm.optimizer import RowWiseAdagrad
from models.dlrm.order_loss import ORDER_LOSSES
from models.dlrm.padding import Padded, padded
from models.dlrm.precision import Precision, matmul_precision, narrow, precision_of
from models.dlrm.scaling import LossScale
from models.dlrm.static_shape_adagrad import StaticShapeAdagrad


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
    return StepOptions(precision_of(section, device), compiling, graphs, on_gpu, 8 if on_gpu else 1)


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
        self._compiles = options.compiled
        self._lesson: Callable[..., Tensor] = compiled(batch_loss) if options.compiled else batch_loss
        self._order_loss = ORDER_LOSSES.get(section.objective)
        assert self._order_loss is None or not (options.compiled or options.graphs), "pairs have no fixed shape"
        self._adam = make_adam(model, section, device)
        rows = StaticShapeAdagrad if options.fixed_shapes else RowWiseAdagrad
        self._adagrad = rows(
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


def make_adam(model: EmbeddingModel, section: EmbeddingSection, device: str) -> torch.optim.AdamW:
    """Return the optimizer of the perceptrons."""
    return torch.optim.AdamW(
        model.parameters(), lr=section.learning_rate, weight_decay=section.weight_decay, fused=True,
        capturable=device == "cuda",
    )  # fmt: skip
