"""Finds the bottleneck of a network's training by three tests, with advice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Final, Literal, NamedTuple, Protocol

import torch

from models.embedding.network.embedding_model import EmbeddingModel
from models.embedding.reading.batches import BatchLoader, ChunkStore, pool_rows
from models.embedding.reading.chunks import Batch
from models.embedding.reading.layout import Layout
from models.embedding.reading.lists import FileLists
from models.embedding.reading.spill import Spill
from models.embedding.table.optimizer import RowWiseAdagrad
from models.embedding.training.losses import weighted_row_losses
from models.embedding.training.train import Training
from models.embedding_section import EmbeddingSection
from models.objectives import learning_lists
from shortlist.contracts import ShortlistError
from shortlist.ranking.devices import torch_device
from shortlist.ranking.inputs import features_matching
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable

Bound = Literal["loader", "embeddings", "network"]

_WARM_UP: Final = 3  # steps that are not measured: memory is mapped, kernels are chosen
_LOADER_MATTERS: Final = 0.2
_SAME_ROWS_MATTER: Final = 0.8


class StepParts(Protocol):
    """A training step, and its parts."""

    def whole(self, batch: Batch) -> None:
        """Look up, score, and update all weights."""

    def embeddings(self, batch: Batch) -> None:
        """Only look up and update embedding rows."""

    def network(self, batch: Batch) -> None:
        """Only score and update the perceptrons, on given embeddings."""


class Diagnosis(NamedTuple):
    """Median times of a step and its parts, in milliseconds."""

    wait_ms: float
    """Mean time that the step waits for its rows."""
    step_ms: float
    """The step on new rows."""
    constant_ms: float
    """The step on the same rows again."""
    embeddings_ms: float
    """The step without the network."""
    network_ms: float
    """The step without the embeddings."""

    @property
    def loader_share(self) -> float:
        """Share of the time spent waiting for rows."""
        return self.wait_ms / (self.wait_ms + self.step_ms)

    @property
    def bound(self) -> Bound:
        """The part that takes most of the time."""
        if self.loader_share > _LOADER_MATTERS:
            return "loader"
        return "embeddings" if self.embeddings_ms > self.network_ms else "network"

    @property
    def lines(self) -> list[str]:
        """The diagnosis as lines of a terminal."""
        return [
            f"step                       {self.step_ms:8.1f} ms",
            f"waiting for the loader     {self.wait_ms:8.1f} ms  ({self.loader_share:.0%} of the time)",
            f"same rows again            {self.constant_ms:8.1f} ms",
            f"embeddings only            {self.embeddings_ms:8.1f} ms",
            f"network only               {self.network_ms:8.1f} ms",
            self.advice,
        ]

    @property
    def advice(self) -> str:
        """The bottleneck, and the setting to change first."""
        return {"loader": self._on_loader, "embeddings": self._on_embeddings, "network": self._on_network}[self.bound]()

    def _on_loader(self) -> str:
        return (
            f"The loader bounds this training: {self.loader_share:.0%} of the time a step waits for rows. Raise"
            " runtime.memory_budget_mib until all rows stay in memory, or point TMPDIR to a fast disk."
        )

    def _on_embeddings(self) -> str:
        is_memory_bound = self.constant_ms < _SAME_ROWS_MATTER * self.step_ms
        memory_hint = (
            "; the same rows again are quicker, so fetching them from far memory is part of it"
            if is_memory_bound
            else ""
        )
        return (
            f"The embeddings bound this training: alone they take {self.embeddings_ms:.1f} ms, the network"
            f" {self.network_ms:.1f} ms{memory_hint}. Lower the model's embedding_dim, raise the vocabularies'"
            " min_rows, or raise its batch_size: a row that comes twice in a batch is moved once."
        )

    def _on_network(self) -> str:
        return (
            f"The network bounds this training: alone it takes {self.network_ms:.1f} ms, the embeddings"
            f" {self.embeddings_ms:.1f} ms. Narrow the model's bottom_mlp and top_mlp, leave its precision on"
            " auto and train where there is bf16 or a GPU, or declare more workers."
        )


def diagnose(
    batches: Iterator[Batch], steps: StepParts, count: int, clock: Callable[[], float] = time.perf_counter
) -> Diagnosis:
    """Measure the loader's share, the step without layers, and the step on the same rows.

    Args:
        batches: Batches from the loader, as in training.
        steps: The step and its parts.
        count: Steps per test.
        clock: Returns the time in seconds.

    Raises:
        ShortlistError: There are too few batches to measure.
    """
    waits, step_times, batch = [], [], None
    start = clock()
    for batch in islice(batches, count + _WARM_UP):
        waits.append(clock() - start)
        step_times.append(_time_ms(lambda rows=batch: steps.whole(rows), clock))  # type: ignore[misc]
        start = clock()
    if batch is None or len(step_times) <= _WARM_UP:
        raise ShortlistError(
            f"diagnose: the training days give {len(step_times)} batch(es); wanted more than {_WARM_UP} to measure."
            " Lower the model's batch_size, or give more data."
        )
    # The wait is a mean, not a median: most batches wait little, the first of a pool long.
    wait_ms = 1_000 * sum(waits[_WARM_UP:]) / len(waits[_WARM_UP:])
    part_medians = [
        median(_time_ms(lambda: step(batch), clock) for _ in range(count))  # noqa: B023 - called within the iteration
        for step in (steps.whole, steps.embeddings, steps.network)
    ]
    return Diagnosis(wait_ms, median(step_times[_WARM_UP:]), *part_medians)


def diagnose_table(
    table: DayTable, section: EmbeddingSection, runtime: Runtime, count: int, model: type[EmbeddingModel]
) -> Diagnosis:
    """Return the bottleneck of a network's training on a feature table; the weights are discarded.

    Args:
        table: The feature table.
        section: The model's declaration.
        runtime: Engine, memory budget and seed.
        count: Steps per test.
        model: Model class of the section's kind.

    Raises:
        ShortlistError: The table does not fit the section, or has too few rows.
    """
    learning = learning_lists(table, features_matching(table, section.features), section)
    layout = Layout.from_features(learning.features)
    store = ChunkStore(learning, layout, runtime.memory_budget_mib * 2**20, Spill())
    paths: list[Path] = learning.paths("train")
    pool, lists = pool_rows(layout, runtime.chunk_rows), FileLists.read(learning)
    loader = BatchLoader(store, paths, section.batch_size, pool, runtime.seed, lists)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(runtime.seed)
        steps = NetworkSteps(model(layout, section), section, torch_device(runtime.engine))
        return diagnose(loader.shuffled(1), steps, count)


class NetworkSteps:
    """The step of `models.embedding.training.train`, and its parts."""

    def __init__(self, model: EmbeddingModel, section: EmbeddingSection, device: str) -> None:
        self._model = model.to(device).train()
        self._training = Training(self._model, section, device)
        self._device = device
        self._adam = torch.optim.AdamW(self._model.parameters(), lr=section.learning_rate, fused=True)
        self._adagrad = RowWiseAdagrad(
            self._model.table.weight_RD, self._model.table.squares_R, section.embedding_learning_rate
        )

    def whole(self, batch: Batch) -> None:
        """Look up, score, and update all weights."""
        self._training.train_batch_and_wait(batch.to(self._device))

    def embeddings(self, batch: Batch) -> None:
        """Only look up and update embedding rows, by a gradient of zeros: the rows do not change."""
        lookups = batch.to(self._device).lookups
        self._adagrad.step(lookups, torch.zeros_like(self._model.table(lookups)))
        self._finish()

    def network(self, batch: Batch) -> None:
        """Only score and update the perceptrons, on embeddings of zeros."""
        moved = batch.to(self._device)
        pooled = moved.dense_BF.new_zeros(len(moved.lookups.starts) - 1, self._model.table.weight_RD.shape[1])
        logits_B = self._model.network(moved.dense_BF, pooled.requires_grad_())
        losses_B = weighted_row_losses(self._model.network, logits_B, moved.labels_B)
        losses_B.mean().backward()  # type: ignore[no-untyped-call]
        self._adam.step()
        self._adam.zero_grad()
        self._finish()

    def _finish(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()  # the lines above only queue the GPU's work


def _time_ms(work: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    work()
    return 1_000 * (clock() - start)
