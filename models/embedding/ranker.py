"""A network over embedded ids as a `Ranker`: built from a layout, trained, kept as safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final, TypeVar

import numpy as np
import polars as pl
import torch
from safetensors.torch import load_file, save_file

from models.checkpoints import checkpoint_location
from models.devices import torch_device
from models.embedding.admission import Admission, begun
from models.embedding.cached_embeddings import CachedTable
from models.embedding.chunks import Chunk
from models.embedding.distributed_trainer import DistributedTrainer, gather_to_rank_zero
from models.embedding.embedding_model import EmbeddingModel
from models.embedding.fused_table import FusedTable
from models.embedding.layout import Layout
from models.embedding.loading import Loading, Rows
from models.embedding.placement import Memory, cached_rows, memory_demand
from models.embedding.precision import precision_of
from models.embedding.sharded import ShardedTable
from models.embedding.step import step_options
from models.embedding.train import Loaders, Training, batch_log_odds
from models.embedding.warm_start import copy_champion_weights
from models.embedding_section import EmbeddingSection
from models.inputs import FeatureColumn, LearningTable, chosen
from models.moments import Moments, merged, moments, scaling
from models.objectives import check_lists, learning_lists
from models.planning.accelerators import Precision
from models.process_group import ProcessGroup, current
from models.ranker import IncompatibleModelError, OnEpoch, Outcome, Ranker
from models.record import TrainedModel, read_record
from models.validation import probabilities
from shortlist.contracts import label_column
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import IntegrityError
from shortlist.storage.tables import DayTable

_WEIGHTS = "weights.safetensors"
_SCORING_ROWS = 8_192


SectionT = TypeVar("SectionT", bound=EmbeddingSection)


class EmbeddingRanker(Ranker[SectionT]):
    """A network over embedded ids; a kind names its section and its model."""

    model_type: ClassVar[type[EmbeddingModel]]
    shares_body = True
    _model: EmbeddingModel
    _layout: Layout
    _device: str = "cpu"
    _admission: Admission | None = None

    @classmethod
    def check_earlier(cls, earlier: TrainedModel, section: SectionT) -> None:
        """Refuse heads that learnt other labels: their weights may have the same shape."""
        if earlier.labels != section.labels:
            raise IncompatibleModelError(
                f"models.{earlier.name}.labels: the earlier heads are of {list(earlier.labels)}, the spec now says"
                f" {list(section.labels)}"
            )

    def _layout_of(self, features: tuple[FeatureColumn, ...], labels: tuple[str, ...] = ()) -> Layout:
        """Return where each feature goes."""
        return Layout.of(features, labels)

    def _learning(self, table: DayTable) -> LearningTable:
        features = chosen(table, self.section.reads)
        return learning_lists(table, features, self.section, tuple(map(label_column, self.section.labels)))

    def _fit(self, learning: LearningTable, runtime: Runtime, on_epoch: OnEpoch, champion: Path | None) -> Outcome:
        self._layout = self._layout_of(learning.features, self.section.labels)
        self._device = torch_device(runtime.engine)
        group = current()
        batch_size = self.section.batch_size if group is None else max(1, self.section.batch_size // group.world)
        slots = rows_on_device(self._layout, self.section, self._device) if group is None else None
        weights_and_squares = 4 * self._layout.rows * (self.section.embedding_dim + 1)
        # The host looks after a cache; ids that lay on the device would have to be fetched for every batch.
        reading = self._device if slots is None else "cpu"
        loading = Loading(learning, self._layout, runtime, reading, weights_and_squares)
        if loading.lists is not None:
            check_lists(learning, self.section, self.name)
            workers = 1 if group is None else group.world
            loading.lists.check_batch_size(learning.paths("train"), batch_size, self.name, workers)
        loaders = Loaders(
            loading.loader(learning.paths("train"), batch_size),
            loading.loader(learning.paths("validation"), _SCORING_ROWS),
        )
        with torch.random.fork_rng(devices=[]):  # weights and dropout depend on the seed, and nobody else's draws on us
            torch.manual_seed(runtime.seed)
            table = drawn_table(self._layout, self.section.embedding_dim, slots, group)
            model = self._built(learning, loading.rows, champion, table)
            admission = (
                None if isinstance(model.table, ShardedTable) else begun(self._layout, learning, model.table, champion)
            )
            self._model, self._admission = model.to(self._device), admission
            lessons = self._warm_start_section(champion)
            if group is None:
                options = step_options(lessons, self._device, learning.rows("train") * lessons.epochs)
                training = Training(self._model, lessons, self._device, options, admission)
                history, best = training.run(loaders, on_epoch, checkpoint_location())
            else:
                together = DistributedTrainer(self._model, lessons, self._device, self._layout, learning, group)
                history, best = together.run(loaders, on_epoch)
                self._device = gather_to_rank_zero(self._model)
            held_out, further = None, {}
            if self.section.refit:
                held_out, further = self._held_out(learning), self._held_out_further(learning)
                self._refit(learning, loading, best, slots, runtime.seed)
            admission = self._admission
        passes = len(history) + (best if self.section.refit else 0)
        return Outcome(
            tuple(history), passes=passes, held_out=held_out, held_out_further=further, best=best, epochs=len(history),
            hashed={} if admission is None else admission.hash_collisions(),
            cached_rows=slots,
        )  # fmt: skip

    def _refit(self, learning: LearningTable, loading: Loading, epochs: int, slots: int | None, seed: int) -> None:
        """Train from fresh weights on training and validation days.

        Args:
            learning: The days.
            loading: Of their rows.
            epochs: How many.
            slots: Embedding rows on the device; None: all.
            seed: Of the first training: the fresh weights are the same.
        """
        every_day = learning.for_refit()
        torch.manual_seed(seed)
        table = drawn_table(self._layout, self.section.embedding_dim, slots, None)
        assert not isinstance(table, ShardedTable)
        model = self._built(every_day, loading.rows, None, table)
        self._admission = begun(self._layout, every_day, table, None)
        self._model = model.to(self._device)
        options = step_options(self.section, self._device, every_day.rows("train") * epochs)
        batches = loading.loader(every_day.paths("train"), self.section.batch_size)
        Training(self._model, self.section, self._device, options, self._admission).repeat(batches, epochs)

    def _warm_start_section(self, champion: Path | None) -> SectionT:
        """Return the section with the epochs of a warm start in place of those from scratch."""
        epochs = self.section.retrain_epochs if champion and self.section.retrain == "warm" else None
        return self.section.model_copy(update={"epochs": epochs}) if epochs else self.section

    def _built(
        self, learning: LearningTable, rows: Rows, champion: Path | None, table: FusedTable | ShardedTable
    ) -> EmbeddingModel:
        group, model = current(), self.model_type(self._layout, self.section, table)
        if champion is not None:
            before = self._layout_of(read_record(champion).features)
            copy_champion_weights(model, self._layout, before, champion / _WEIGHTS)
            return model
        found = merged(map(moments, rows.dense(learning.paths("train"))))
        mean_F, scale_F = scaling(merged(Moments(*own) for own in group.gathered(np.stack(found))) if group else found)
        model.network.standardise(torch.from_numpy(mean_F), torch.from_numpy(scale_F))
        model.network.start_from(learning.base_rate, *learning.base_rates(self.section.labels))
        return model

    def _predict(self, frame: pl.DataFrame) -> np.ndarray:
        return probabilities(self._log_odds(frame))

    def _log_odds(self, frame: pl.DataFrame) -> np.ndarray:
        found = self._all_log_odds(frame)
        return found[:, 0] if found.ndim == 2 else found

    def _further_log_odds(self, frame: pl.DataFrame) -> dict[str, np.ndarray]:
        if not self.section.labels:
            return {}
        return dict(zip(self.section.labels, self._all_log_odds(frame).T[1:], strict=True))

    def _all_log_odds(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the log-odds of rows, shape (rows,); (rows, H) with further labels."""
        chunk = Chunk.decoded(frame.select(one.name for one in self.features), self._layout)
        edges = range(0, chunk.rows, _SCORING_ROWS)
        batches = (chunk.batch(first, min(first + _SCORING_ROWS, chunk.rows)) for first in edges)
        return np.concatenate([batch_log_odds(self._model, batch.to(self._device)) for batch in batches])

    def _write(self, folder: Path) -> None:
        save_file({name: tensor.cpu() for name, tensor in self._model.state_dict().items()}, folder / _WEIGHTS)
        if self._admission is not None:
            self._admission.save(folder)

    def _read(self, folder: Path) -> None:
        self._layout = self._layout_of(self.record.features)
        self._model = self.model_type(self._layout, self.section)
        try:
            self._model.load_state_dict(load_file(folder / _WEIGHTS))
        except RuntimeError as error:
            raise IntegrityError(f"{folder / _WEIGHTS}: does not fit model.json: {error}") from None


_CGROUP: Final = Path("/sys/fs/cgroup")
_MEMINFO: Final = Path("/proc/meminfo")


def free_memory() -> Memory:
    """Return the memory of the current CUDA device, and the host's."""
    free, total = torch.cuda.mem_get_info()
    return Memory(total, free, host_free())


def host_free(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Return the bytes of host memory that are available, to the machine and to this container.

    Args:
        meminfo: The kernel's account of the machine.
        cgroup: The container's limits (version 2); a machine without any has none of its files.
    """
    free = 1024 * _number_behind("MemAvailable:", meminfo)
    limit = cgroup / "memory.max"
    if limit.exists() and (most := limit.read_text().strip()) != "max":
        # As the kubelet counts: file pages that nobody used lately can be had any time.
        used = int((cgroup / "memory.current").read_text()) - _number_behind("inactive_file", cgroup / "memory.stat")
        free = min(free, int(most) - used)
    return free


def _number_behind(name: str, file: Path) -> int:
    lines = (line.split() for line in file.read_text().splitlines())
    return int(next(words[1] for words in lines if words[0] == name))


_COUNTED: Final = 8
"""Bytes per row that `models.embedding.admission` takes beside the table, as far as it is on the device."""


def rows_on_device(layout: Layout, section: EmbeddingSection, device: str) -> int | None:
    """Return how many embedding rows are kept on the device; None: all.

    Args:
        layout: The features.
        section: The model's section.
        device: "cpu" or "cuda".

    Raises:
        PlacementError: There is too little memory; says how much is missing, and what would fit.
    """
    precision: Precision = "bf16" if (exact := precision_of(section, device)) == "fp16" else exact
    beside = _COUNTED if any(one.hashed for one in layout.tables) else 0
    demand = memory_demand(layout, section, precision, beside)
    return cached_rows(demand, section.cached_rows, free_memory() if device == "cuda" else None)


def drawn_table(layout: Layout, width: int, slots: int | None, group: ProcessGroup | None) -> FusedTable | ShardedTable:
    """Return a fresh table, in host memory still; its rows are the same ones wherever they will lie.

    Args:
        layout: The features.
        width: Floats of a row.
        slots: Rows that the device keeps; None: all.
        group: The processes that the rows are spread over; None: this one has all.
    """
    if group is not None:
        return ShardedTable(layout, width, group.rank, group.world)
    return FusedTable(layout, width) if slots is None else CachedTable(layout, width, slots)
