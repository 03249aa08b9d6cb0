"""The training of one network over embedded ids: table, first weights, loaders, epochs, and the refit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from models.embedding.network.embedding_model import EmbeddingModel
from models.embedding.reading.layout import Layout
from models.embedding.reading.loading import RowStore, TrainingLoaders
from models.embedding.table.admission import BucketAdmission, start_admission
from models.embedding.table.sharded import ShardedTable
from models.embedding.table.table_memory import make_table, rows_on_device
from models.embedding.training.distributed_trainer import DistributedTrainer, gather_to_rank_zero
from models.embedding.training.step import step_options
from models.embedding.training.train import Loaders, Training
from models.embedding.training.warm_start import copy_champion_weights
from models.embedding_section import EmbeddingSection
from models.moments import Moments, compute_moments, mean_and_scale, merge_moments
from shortlist.ranking.checkpoints import checkpoint_location
from shortlist.ranking.devices import torch_device
from shortlist.ranking.inputs import LearningTable
from shortlist.ranking.process_group import current_group
from shortlist.ranking.ranker import OnEpoch
from shortlist.spec.runtime import Runtime

WEIGHTS: Final = "weights.safetensors"
"""File of a model folder with the weights."""
SCORING_ROWS: Final = 8_192
"""Rows of a batch that is scored without learning."""


class ChampionNetwork(NamedTuple):
    """The earlier model from which a training starts."""

    folder: Path
    layout: Layout
    """Layout of its features."""


class NetworkFit:
    """The training of one network.

    Attributes:
        model: The network, after `run` or `refit`.
        admission: Counts of hashed ids; None: no feature is hashed.
        device: Device of the network.
        cached_rows: Embedding rows that are kept on the device; None: all.
    """

    model: EmbeddingModel
    admission: BucketAdmission | None = None

    def __init__(
        self, model_type: type[EmbeddingModel], layout: Layout, section: EmbeddingSection, learning: LearningTable,
        runtime: Runtime, name: str,
    ) -> None:  # fmt: skip
        """Decide where table and rows are kept.

        Args:
            model_type: Class of the network with its table.
            layout: The features.
            section: The model's section; a warm start has its own number of epochs there.
            learning: The training and validation days.
            runtime: Engine, memory budget and seed.
            name: Key of the model in the spec.

        Raises:
            ShortlistError: The device lacks memory, or a list is longer than a batch.
        """
        self._model_type, self._layout, self._section = model_type, layout, section
        self._learning, self._seed = learning, runtime.seed
        self._group = current_group()
        self.device = torch_device(runtime.engine)
        self.cached_rows = rows_on_device(layout, section, self.device) if self._group is None else None
        weights_and_squares = 4 * layout.rows * (section.embedding_dim + 1)
        # The host manages the cache; ids on the device would have to be fetched for every batch.
        decoding_device = self.device if self.cached_rows is None else "cpu"
        self._loaders = TrainingLoaders(learning, layout, runtime, decoding_device, weights_and_squares)
        workers = 1 if self._group is None else self._group.world
        self._batch_size = max(1, section.batch_size // workers)
        if self._loaders.lists is not None:
            self._loaders.lists.check_batch_size(learning.paths("train"), self._batch_size, name, workers)

    def run(self, on_epoch: OnEpoch, champion: ChampionNetwork | None) -> tuple[list[dict[str, Any]], int]:
        """Train until patience or epochs end; leave the best epoch's weights in the model.

        Args:
            on_epoch: Called after every epoch with its metrics.
            champion: The earlier model to start from; None: fresh weights.

        Returns:
            The metrics of every epoch, and the number of the best epoch.
        """
        learning, section = self._learning, self._section
        loaders = Loaders(
            self._loaders.loader(learning.paths("train"), self._batch_size),
            self._loaders.loader(learning.paths("validation"), SCORING_ROWS),
        )
        with torch.random.fork_rng(devices=[]):  # isolates the random generator from other code
            torch.manual_seed(self._seed)
            self._create_model(learning, champion)
            if self._group is None:
                options = step_options(section, self.device, learning.rows("train") * section.epochs)
                training = Training(self.model, section, self.device, options, self.admission)
                return training.run(loaders, on_epoch, checkpoint_location())
            trainer = DistributedTrainer(self.model, section, self.device, self._layout, learning, self._group)
            history, best = trainer.run(loaders, on_epoch)
            self.device = gather_to_rank_zero(self.model)
            return history, best

    def refit(self, epochs: int) -> None:
        """Train from fresh weights, of the same seed, on training and validation days.

        Args:
            epochs: Number of epochs.
        """
        learning = self._learning.for_refit()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            self._create_model(learning, None)
            options = step_options(self._section, self.device, learning.rows("train") * epochs)
            batches = self._loaders.loader(learning.paths("train"), self._section.batch_size)
            training = Training(self.model, self._section, self.device, options, self.admission)
            training.train_epochs(batches, epochs)

    def _create_model(self, learning: LearningTable, champion: ChampionNetwork | None) -> None:
        """Create table, network and admission on the device, with fresh weights or those of the champion."""
        table = make_table(self._layout, self._section.embedding_dim, self.cached_rows, self._group)
        model = self._model_type(self._layout, self._section, table)
        if champion is None:
            _set_first_weights(model, learning, self._loaders.rows, self._section.labels)
        else:
            copy_champion_weights(model, self._layout, champion.layout, champion.folder / WEIGHTS)
        self.admission = (
            None
            if isinstance(model.table, ShardedTable)
            else start_admission(self._layout, learning, model.table, None if champion is None else champion.folder)
        )
        self.model = model.to(self.device)


def _set_first_weights(
    model: EmbeddingModel, learning: LearningTable, row_store: RowStore, labels: tuple[str, ...]
) -> None:
    """Let a fresh network standardise the floats of the training days, and predict the base rates."""
    group = current_group()
    file_moments = merge_moments(map(compute_moments, row_store.iter_dense(learning.paths("train"))))
    mean_F, scale_F = mean_and_scale(
        merge_moments(Moments(*rank_moments) for rank_moments in group.gather(np.stack(file_moments)))
        if group
        else file_moments
    )
    model.network.standardise(torch.from_numpy(mean_F), torch.from_numpy(scale_F))
    model.network.set_base_rates(learning.base_rate, *learning.base_rates(labels))
