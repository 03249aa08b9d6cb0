"""The configuration that NVIDIA published for its DLRM: section, layout, and a feature table of generated rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import polars as pl
import torch
from torch import Tensor

from benchmarks.gpu.setting import Setting
from models.dlrm.section import DLRMModel
from models.embedding.reading.chunks import Batch, Lookups
from models.embedding.reading.layout import Layout
from shortlist.contracts import Columns, Files
from shortlist.planning.model_shape import EmbeddingTable, ModelShape
from shortlist.planning.plan import PUBLISHED
from shortlist.ranking.inputs import TableFeature
from shortlist.storage.tables import DayTable, DayTableWriter

CARDINALITIES: Final = (
    7_912_889, 33_823, 17_139, 7_339, 20_046, 4, 7_105, 1_382, 63, 5_554_114, 582_469, 245_828, 11, 2_209, 10_667, 104,
    4, 968, 15, 8_165_896, 2_675_940, 7_156_453, 302_516, 12_022, 97, 35,
)  # fmt: skip
"""Of Criteo's terabyte log where a category counts from 15 occurrences on: 32.7 M rows, 15.6 GiB at a width of 128."""
_ZIPF: Final = 1.05
"""The exponent of `benchmarks.criteo`; NVIDIA's synthetic data has 1.45, which caches like better."""
_SCATTER: Final = 2_654_435_761
"""A prime above every cardinality: rank k becomes id k * prime mod size, so that frequent ids lie anywhere."""
_TELLING: Final = (0, 4, 9, 11, 19)
_FIRST: Final = date(2026, 1, 5)


@dataclass(frozen=True)
class Configuration:
    """A DLRM on one-hot tables.

    Attributes:
        sizes: Rows of each table.
        floats: Dense inputs.
        section: Everything else.
    """

    sizes: tuple[int, ...]
    floats: int
    section: DLRMModel

    def trained(self, **changes: Any) -> Configuration:
        """Return the same with other settings."""
        return replace(self, section=DLRMModel.model_validate({**self.section.model_dump(), **changes}))

    @property
    def features(self) -> tuple[TableFeature, ...]:
        """The columns of its feature table."""
        dense = [TableFeature(name=f"I{number + 1}", kind="dense") for number in range(self.floats)]
        ids = [TableFeature(name=f"C{number + 1}", kind="id", size=size) for number, size in enumerate(self.sizes)]
        return (*dense, *ids)

    @property
    def layout(self) -> Layout:
        """Where each feature goes."""
        return Layout.from_features(self.features)

    @property
    def shape(self) -> ModelShape:
        """What its costs depend on."""
        section, vectors = self.section, len(self.sizes) + 1
        bottom = (self.floats, *section.bottom_mlp, section.embedding_dim)
        top = (section.embedding_dim + vectors * (vectors - 1) // 2, *section.top_mlp, 1)
        tables = tuple(EmbeddingTable(f"C{number + 1}", size, 1, "given") for number, size in enumerate(self.sizes))
        return ModelShape(tables, self.floats, section.embedding_dim, bottom, top, section.batch_size)


def published(setting: Setting) -> Configuration:
    """Return NVIDIA's configuration, or one of the same form that a CPU trains in a second."""
    if setting.small:
        section = DLRMModel(features=("*",), embedding_dim=16, bottom_mlp=(32,), top_mlp=(64, 32), batch_size=256)
        return Configuration(tuple(min(size, 500) for size in CARDINALITIES[:8]), 5, section)
    section = DLRMModel(
        features=("*",), embedding_dim=PUBLISHED.width, bottom_mlp=PUBLISHED.bottom[1:-1],
        top_mlp=PUBLISHED.top[1:-1], batch_size=PUBLISHED.batch,
    )  # fmt: skip
    return Configuration(CARDINALITIES, PUBLISHED.floats, section)


def write_table(
    folder: Path, configuration: Configuration, train_rows: int, validation_rows: int, device: str, chunk_rows: int
) -> DayTable:
    """Write two training days, one to validate and one to test, drawn on the device a file at a time.

    26 columns of powers are a minute's work of one core at full size; the device draws them while a file is written.
    """
    writer = DayTableWriter(folder, Files.TABLE, chunk_rows, "uncompressed")
    days = [_FIRST + timedelta(days=number) for number in range(4)]
    generator = torch.Generator(device).manual_seed(17)
    for day, rows in zip(days, (train_rows // 2, train_rows // 2, validation_rows, chunk_rows // 8), strict=True):
        for start in range(0, rows, chunk_rows):
            writer.append(_frame(day, configuration, *draw(configuration, min(chunk_rows, rows - start), generator)))
    named = [str(day) for day in days]
    columns = [feature.model_dump(exclude_none=True) for feature in configuration.features]
    return writer.close(
        {"columns": columns, "split": {"train": named[:2], "validation": named[2:3], "test": named[3:]}}
    )


def draw(configuration: Configuration, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return labels (rows,), floats (rows, F) with NaN for null, ids (S, rows), int32; on the generator's device."""
    device = generator.device
    dense = torch.randn(rows, configuration.floats, generator=generator, device=device)
    ids = torch.stack([_zipf(rows, size, generator) for size in configuration.sizes])
    logit = -1.2 + 0.6 * dense[:, 0] - 0.4 * dense[:, 1]
    for column in _TELLING:
        if column < len(configuration.sizes):
            logit += 0.7 * torch.sin(ids[column].float() * 12.9898 + column)
    labels = (torch.rand(rows, generator=generator, device=device) < torch.sigmoid(logit)).to(torch.int8)
    # Hidden after the label is drawn: a value that is not known has still had its effect.
    dense[torch.rand(dense.shape, generator=generator, device=device) < 0.1] = float("nan")
    return labels, dense, ids


def drawn_batch(configuration: Configuration, rows: int, generator: torch.Generator) -> Batch:
    """Return a batch of exactly so many rows, on the generator's device."""
    labels, dense, ids = draw(configuration, rows, generator)
    starts = torch.tensor(configuration.layout.starts, dtype=torch.int32, device=ids.device)
    rows_L = (ids.t() + starts).flatten()
    slots = torch.arange(len(rows_L) + 1, dtype=torch.int32, device=ids.device)
    return Batch(labels.float(), dense, Lookups(rows_L, slots, None))


def _zipf(rows: int, size: int, generator: torch.Generator) -> Tensor:
    """Return ids below `size`; the k-th most frequent comes about as often as 1 / k^1.05."""
    power = 1 - _ZIPF
    uniform = torch.rand(rows, generator=generator, device=generator.device, dtype=torch.float64)
    ranks = (((size + 1) ** power * uniform + 1 - uniform) ** (1 / power) - 1).long().clamp_(0, size - 1)
    return (ranks * _SCATTER % size).int()


def _frame(day: date, configuration: Configuration, labels: Tensor, dense: Tensor, ids: Tensor) -> pl.DataFrame:
    floats, id_columns = dense.t().contiguous().cpu().numpy(), ids.cpu().numpy()
    columns = {Columns.LABEL: labels.cpu().numpy(), Columns.DAY: [day] * len(labels)}
    columns |= {f"I{number + 1}": pl.Series(floats[number]).fill_nan(None) for number in range(configuration.floats)}
    columns |= {f"C{number + 1}": id_columns[number].astype("uint32") for number in range(len(configuration.sizes))}
    return pl.DataFrame(columns)
