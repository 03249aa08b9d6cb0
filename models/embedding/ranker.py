"""A network over embedded ids as a `Ranker`: built from a layout, trained, saved as safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final, TypeVar

import numpy as np
import polars as pl
import torch
from safetensors.torch import load_file, save_file

from models.checkpoints import checkpoint_location
from models.devices import torch_device
from models.embedding.admission import BucketAdmission, start_admission
from models.embedding.cached_embeddings import CachedTable
from models.embedding.chunks import Chunk
from models.embedding.distributed_trainer import DistributedTrainer, gather_to_rank_zero
from models.embedding.embedding_model import EmbeddingModel
from models.embedding.fused_table import FusedTable
from models.embedding.layout import Layout
from models.embedding.loading import RowStore, TrainingLoaders
from models.embedding.placement import Memory, cached_rows, memory_demand
from models.embedding.precision import precision_of
from models.embedding.sharded import ShardedTable
from models.embedding.step import step_options
from models.embedding.train import Loaders, Training, batch_log_odds
from models.embedding.warm_start import copy_champion_weights
from models.embedding_section import EmbeddingSection
from models.inputs import LearningTable, TableFeature, features_matching
from models.moments import Moments, compute_moments, mean_and_scale, merge_moments
from models.objectives import check_lists, learning_lists
from models.planning.accelerators import Precision
from models.process_group import ProcessGroup, current_group
from models.ranker import FitOutcome, IncompatibleModelError, OnEpoch, Ranker
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
    """A network over embedded ids; a kind sets `section_type` and `model_type`."""

    model_type: ClassVar[type[EmbeddingModel]]
    shares_body = True
    _model: EmbeddingModel
    _layout: Layout
    _device: str = "cpu"
    _admission: BucketAdmission | None = None

    @classmethod
    def check_previous_model(cls, previous_model: TrainedModel, section: SectionT) -> None:
        """Refuse an earlier model of other further labels, whose weights may have the same shape."""
        if previous_model.labels != section.labels:
            raise IncompatibleModelError(
                f"models.{previous_model.name}.labels: the earlier heads are of {list(previous_model.labels)}, the"
                f" spec now says {list(section.labels)}"
            )

    def _make_layout(self, features: tuple[TableFeature, ...], labels: tuple[str, ...] = ()) -> Layout:
        """Return the layout of features and further labels."""
        return Layout.from_features(features, labels)

    def _learning(self, table: DayTable) -> LearningTable:
        features = features_matching(table, self.section.reads)
        return learning_lists(table, features, self.section, tuple(map(label_column, self.section.labels)))

    def _fit(self, learning: LearningTable, runtime: Runtime, on_epoch: OnEpoch, champion: Path | None) -> FitOutcome:
        self._layout = self._make_layout(learning.features, self.section.labels)
        self._device = torch_device(runtime.engine)
        group = current_group()
        batch_size = self.section.batch_size if group is None else max(1, self.section.batch_size // group.world)
        slots = rows_on_device(self._layout, self.section, self._device) if group is None else None
        weights_and_squares = 4 * self._layout.rows * (self.section.embedding_dim + 1)
        # The host manages the cache; ids on the device would have to be fetched for every batch.
        decoding_device = self._device if slots is None else "cpu"
        training_loaders = TrainingLoaders(learning, self._layout, runtime, decoding_device, weights_and_squares)
        if training_loaders.lists is not None:
            check_lists(learning, self.section, self.name)
            workers = 1 if group is None else group.world
            training_loaders.lists.check_batch_size(learning.paths("train"), batch_size, self.name, workers)
        loaders = Loaders(
            training_loaders.loader(learning.paths("train"), batch_size),
            training_loaders.loader(learning.paths("validation"), _SCORING_ROWS),
        )
        with torch.random.fork_rng(devices=[]):  # isolates the random generator from other code
            torch.manual_seed(runtime.seed)
            table = make_table(self._layout, self.section.embedding_dim, slots, group)
            model = self._make_model(learning, training_loaders.rows, champion, table)
            admission = (
                None
                if isinstance(model.table, ShardedTable)
                else start_admission(self._layout, learning, model.table, champion)
            )
            self._model, self._admission = model.to(self._device), admission
            section = self._warm_start_section(champion)
            if group is None:
                options = step_options(section, self._device, learning.rows("train") * section.epochs)
                training = Training(self._model, section, self._device, options, admission)
                history, best = training.run(loaders, on_epoch, checkpoint_location())
            else:
                trainer = DistributedTrainer(self._model, section, self._device, self._layout, learning, group)
                history, best = trainer.run(loaders, on_epoch)
                self._device = gather_to_rank_zero(self._model)
            held_out, further = None, {}
            if self.section.refit:
                held_out, further = self._score_held_out(learning), self._score_held_out_further(learning)
                self._refit(learning, training_loaders, best, slots, runtime.seed)
            admission = self._admission
        passes = len(history) + (best if self.section.refit else 0)
        return FitOutcome(
            tuple(history), passes=passes, held_out=held_out, held_out_further=further, best=best, epochs=len(history),
            hashed={} if admission is None else admission.hash_collisions(),
            cached_rows=slots,
        )  # fmt: skip

    def _refit(
        self, learning: LearningTable, training_loaders: TrainingLoaders, epochs: int, slots: int | None, seed: int
    ) -> None:
        """Train from fresh weights on training and validation days.

        Args:
            learning: The training and validation days.
            training_loaders: Of their rows.
            epochs: Number of epochs.
            slots: Embedding rows on the device; None: all.
            seed: Seed of the first training, so that the fresh weights are the same.
        """
        refit_learning = learning.for_refit()
        torch.manual_seed(seed)
        table = make_table(self._layout, self.section.embedding_dim, slots, None)
        assert not isinstance(table, ShardedTable)
        model = self._make_model(refit_learning, training_loaders.rows, None, table)
        self._admission = start_admission(self._layout, refit_learning, table, None)
        self._model = model.to(self._device)
        options = step_options(self.section, self._device, refit_learning.rows("train") * epochs)
        batches = training_loaders.loader(refit_learning.paths("train"), self.section.batch_size)
        Training(self._model, self.section, self._device, options, self._admission).train_epochs(batches, epochs)

    def _warm_start_section(self, champion: Path | None) -> SectionT:
        """Return the section, with `retrain_epochs` as its epochs in a warm start."""
        epochs = self.section.retrain_epochs if champion and self.section.retrain == "warm" else None
        return self.section.model_copy(update={"epochs": epochs}) if epochs else self.section

    def _make_model(
        self, learning: LearningTable, row_store: RowStore, champion: Path | None, table: FusedTable | ShardedTable
    ) -> EmbeddingModel:
        group, model = current_group(), self.model_type(self._layout, self.section, table)
        if champion is not None:
            champion_layout = self._make_layout(read_record(champion).features)
            copy_champion_weights(model, self._layout, champion_layout, champion / _WEIGHTS)
            return model
        file_moments = merge_moments(map(compute_moments, row_store.iter_dense(learning.paths("train"))))
        mean_F, scale_F = mean_and_scale(
            merge_moments(Moments(*rank_moments) for rank_moments in group.gather(np.stack(file_moments)))
            if group
            else file_moments
        )
        model.network.standardise(torch.from_numpy(mean_F), torch.from_numpy(scale_F))
        model.network.set_base_rates(learning.base_rate, *learning.base_rates(self.section.labels))
        return model

    def _predict(self, frame: pl.DataFrame) -> np.ndarray:
        return probabilities(self._log_odds(frame))

    def _log_odds(self, frame: pl.DataFrame) -> np.ndarray:
        log_odds = self._all_log_odds(frame)
        return log_odds[:, 0] if log_odds.ndim == 2 else log_odds

    def _further_log_odds(self, frame: pl.DataFrame) -> dict[str, np.ndarray]:
        if not self.section.labels:
            return {}
        return dict(zip(self.section.labels, self._all_log_odds(frame).T[1:], strict=True))

    def _all_log_odds(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the log-odds of rows, shape (rows,); (rows, H) with further labels."""
        chunk = Chunk.decoded(frame.select(feature.name for feature in self.features), self._layout)
        edges = range(0, chunk.rows, _SCORING_ROWS)
        batches = (chunk.batch(first, min(first + _SCORING_ROWS, chunk.rows)) for first in edges)
        return np.concatenate([batch_log_odds(self._model, batch.to(self._device)) for batch in batches])

    def _write(self, folder: Path) -> None:
        save_file({name: tensor.cpu() for name, tensor in self._model.state_dict().items()}, folder / _WEIGHTS)
        if self._admission is not None:
            self._admission.save(folder)

    def _read(self, folder: Path) -> None:
        self._layout = self._make_layout(self.record.features)
        self._model = self.model_type(self._layout, self.section)
        try:
            self._model.load_state_dict(load_file(folder / _WEIGHTS))
        except RuntimeError as error:
            raise IntegrityError(f"{folder / _WEIGHTS}: does not fit model.json: {error}") from None


_CGROUP: Final = Path("/sys/fs/cgroup")
_MEMINFO: Final = Path("/proc/meminfo")


def free_memory() -> Memory:
    """Return the available memory of the current CUDA device and of the host."""
    free, total = torch.cuda.mem_get_info()
    return Memory(total, free, free_host_bytes())


def free_host_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Return the available bytes of host memory, limited by the machine and by this container.

    Args:
        meminfo: The kernel's file on the machine's memory.
        cgroup: Folder of the container's limits (version 2); the files are missing where there is no limit.
    """
    free = 1024 * _read_number("MemAvailable:", meminfo)
    limit = cgroup / "memory.max"
    if limit.exists() and (limit_text := limit.read_text().strip()) != "max":
        # As the kubelet counts: inactive file pages can be reclaimed at any time.
        used_bytes = int((cgroup / "memory.current").read_text()) - _read_number(
            "inactive_file", cgroup / "memory.stat"
        )
        free = min(free, int(limit_text) - used_bytes)
    return free


def _read_number(name: str, file: Path) -> int:
    lines = (line.split() for line in file.read_text().splitlines())
    return int(next(fields[1] for fields in lines if fields[0] == name))


_COUNTER_BYTES: Final = 8
"""Bytes per row of the counters of `models.embedding.admission` on the device."""


def rows_on_device(layout: Layout, section: EmbeddingSection, device: str) -> int | None:
    """Return how many embedding rows are kept on the device; None: all.

    Args:
        layout: The features.
        section: The model's section.
        device: "cpu" or "cuda".

    Raises:
        PlacementError: There is too little memory; the message says how much is missing, and what would fit.
    """
    precision: Precision = (
        "bf16" if (declared_precision := precision_of(section, device)) == "fp16" else declared_precision
    )
    extra_row_bytes = _COUNTER_BYTES if any(feature.hashed for feature in layout.tables) else 0
    demand = memory_demand(layout, section, precision, extra_row_bytes)
    return cached_rows(demand, section.cached_rows, free_memory() if device == "cuda" else None)


def make_table(layout: Layout, width: int, slots: int | None, group: ProcessGroup | None) -> FusedTable | ShardedTable:
    """Return a fresh table, in host memory; its rows are the same for every placement.

    Args:
        layout: The features.
        width: Floats of a row.
        slots: Rows that the device keeps; None: all.
        group: The processes that share the rows; None: this process has all rows.
    """
    if group is not None:
        return ShardedTable(layout, width, group.rank, group.world)
    return FusedTable(layout, width) if slots is None else CachedTable(layout, width, slots)
