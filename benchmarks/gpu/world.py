"""What training programs share: a generated table, our loader over it, and models that are built on the device."""

from __future__ import annotations

from collections.abc import Generator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final, Self

import torch

from benchmarks.gpu.published import Configuration, write_table
from benchmarks.gpu.setting import Setting
from models.dlrm.network import DLRM
from models.dlrm.section import DLRMModel
from models.embedding.reading.batches import BatchLoader
from models.embedding.reading.chunks import Batch
from models.embedding.reading.layout import Layout
from models.embedding.reading.loading import TrainingLoaders
from shortlist.contracts import Files
from shortlist.planning.plan import FLOAT
from shortlist.ranking.inputs import LearningTable, features_matching
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable

SEED: Final = 17
_BUDGET_MIB: Final = 16_384


class World:
    """A configuration's table on disk, and our loader over it; a context, since the table is a scratch one."""

    def __init__(
        self, setting: Setting, configuration: Configuration, train_rows: int, validation_rows: int, reading: str = ""
    ) -> None:
        """Write the table.

        Args:
            setting: Device and size.
            configuration: What is trained.
            train_rows: Rows to learn from.
            validation_rows: Rows to score.
            reading: Where batches are wanted; the setting's device by default.
        """
        self.setting, self.configuration = setting, configuration
        self.chunk_rows = setting.pick(2**19, 2**10)
        self._scratch = TemporaryDirectory(prefix="shortlist-bench-")
        folder = Path(self._scratch.name) / "table"
        write_table(folder, configuration, train_rows, validation_rows, setting.device, self.chunk_rows)
        table = DayTable.open(folder, Files.TABLE)
        self.learning = LearningTable(table, features_matching(table, ("*",)))
        self.layout = configuration.layout
        runtime = Runtime(memory_budget_mib=_BUDGET_MIB, chunk_rows=self.chunk_rows, seed=SEED)
        weights_and_squares = FLOAT * self.layout.rows * (configuration.section.embedding_dim + 1)
        self._loading = TrainingLoaders(
            self.learning, self.layout, runtime, reading or setting.device, weights_and_squares
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scratch.cleanup()

    def model(self, section: DLRMModel) -> DLRM:
        """Return the untrained model, the same every time, on the device."""
        model = untrained(self.layout, section, self.setting.device)
        model.network.set_base_rates(self.learning.base_rate)
        return model

    def training(self, batch_size: int) -> BatchLoader:
        """Return our loader over the training days."""
        return self._loading.loader(self.learning.paths("train"), batch_size)

    def validation(self, batch_size: int) -> BatchLoader:
        """Return our loader over the validation day."""
        return self._loading.loader(self.learning.paths("validation"), batch_size)

    def batches(self, batch_size: int) -> Generator[Batch]:
        """Give the batches of epoch after epoch, where they are wanted."""
        loader = self.training(batch_size)
        for epoch in count(1):
            yield from loader.shuffled(epoch)


def untrained(layout: Layout, section: DLRMModel, device: str) -> DLRM:
    """Return a model, the same every time; its weights are drawn on the device: a host takes a minute for 15 GiB."""
    with torch.device(device):
        torch.manual_seed(SEED)
        return DLRM(layout, section).train()
