"""Test rows with training's scores, and their tensors as serving assembles them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.contracts import Columns, DataError, Files, score_column
from shortlist.evaluation.metrics.measure import scores_file
from shortlist.evaluation.metrics.scores import further_labels, iter_scores
from shortlist.features.declared.slates import SLATE
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.features.rows.table_rows import read_day
from shortlist.features.rows.transform import Transformer
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.serving.export.encoding import encode
from shortlist.serving.export.signature import FOLDER, Signature
from shortlist.serving.server.day_assembler import DayAssembler
from shortlist.serving.validation.edge_cases import Tensors, differing_inputs, edge_case_difference
from shortlist.spec.data import Column
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable

_TRUTH = "label_scored"
"""Labels of the scores file; the log has its own label column."""
_DRAW = "draw"
"""Random number of each row."""


@dataclass(frozen=True)
class ReferenceRows:
    """Rows of the log with training's scores."""

    rows: pl.DataFrame
    """`impression_id`, `day`, `label_scored`, `score`, and `score_*` of further labels."""
    test_rows: int
    """Number of test rows that they were drawn from."""


@dataclass(frozen=True)
class ServedBatch:
    """Rows of one day as tensors of a model, with training's scores."""

    impressions: npt.NDArray[np.int64]
    reference: npt.NDArray[np.float32]
    labels: npt.NDArray[np.float64]
    tensors: Tensors
    further_references: npt.NDArray[np.float32] | None = None
    """Training's scores of further labels, shape (rows, labels); None without further labels."""

    @property
    def all_references(self) -> npt.NDArray[np.float32]:
        """Training's scores of all labels, shape (rows, 1 + further labels)."""
        return np.column_stack(
            [self.reference, *([] if self.further_references is None else [self.further_references])]
        )


def draw_reference_rows(scores: Path, count: int, seed: int) -> ReferenceRows:
    """Return randomly drawn test rows, by impression; all rows when there are at most `count`.

    The rows with the smallest random numbers are kept, so that their memory depends on `count` alone.

    Args:
        scores: Scores written by the training step.
        count: Number of rows to draw.
        seed: Seed of the draw.

    Raises:
        UnmeasurableError: There are no scores.
    """
    file, random = scores_file(scores), np.random.default_rng(seed)
    names = Columns.IMPRESSION, Columns.DAY, *map(score_column, further_labels(file))
    sampled_rows, test_rows = pl.DataFrame(), 0
    for piece in iter_scores(file, "test", names):
        test_rows += piece.labels.size
        rows = piece.frame.with_columns(
            pl.Series(_TRUTH, piece.labels.astype(np.float64)),
            pl.Series("score", piece.scores.astype(np.float32)),
            pl.Series(_DRAW, random.random(piece.labels.size)),
        )
        sampled_rows = pl.concat([sampled_rows, rows.bottom_k(count, by=_DRAW)]) if sampled_rows.height else rows
        sampled_rows = sampled_rows.bottom_k(count, by=_DRAW)
    return ReferenceRows(sampled_rows.drop(_DRAW).sort(Columns.IMPRESSION), test_rows)


class ServedRows:
    """Assembles the tensors of reference rows as a server does: request columns, view snapshots, tensors."""

    def __init__(self, model: Path, log: Path, fitted: Path, reference: ReferenceRows) -> None:
        """Open the log and the views.

        Args:
            model: The model folder.
            log: Folder of the valid log.
            fitted: Folder of the fitted features.
            reference: Rows with training's scores.

        Raises:
            IntegrityError: The model was not exported.
        """
        self.signature = Signature.read(model / FOLDER)
        self._further_columns = [score_column(label) for label in self.signature.labels]
        self._plan = Preprocessing.load(model / Files.PREPROCESSING).plan
        self._paths = fitted, model / Files.PREPROCESSING
        views = ViewIndex.read(fitted / "views")
        self._assembler = DayAssembler(self._plan, self.signature, views)
        self._tiles = views.tiles
        self._table = DayTable.open(log, Files.LOG)
        self._reference = reference

    def batches(self) -> list[ServedBatch]:
        """Return all rows, one batch per file of the log.

        Raises:
            DataError: Some rows are missing from the log.
        """
        batches = []
        for day, rows in self._days(self._reference.rows):
            is_compared = rows["score"].is_not_null()
            tensors = {
                name: tensor[is_compared.to_numpy()] for name, tensor in self._assembler.tensors(rows, day).items()
            }
            compared_rows = rows.filter(is_compared)
            further_references = (
                compared_rows.select(self._further_columns).to_numpy() if self._further_columns else None
            )
            reference = compared_rows["score"].to_numpy()
            batches.append(
                ServedBatch(
                    compared_rows[Columns.IMPRESSION].to_numpy(),
                    reference,
                    compared_rows[_TRUTH].to_numpy(),
                    tensors,
                    further_references,
                )
            )
        row_count = sum(batch.impressions.size for batch in batches)
        if row_count != self._reference.rows.height:
            raise DataError(
                f"{self._table.folder}: holds {row_count} of the {self._reference.rows.height} rows that training"
                " scored; these scores are of another log"
            )
        return batches

    @property
    def request_columns(self) -> tuple[Column, ...]:
        """Columns of a request that the model reads, or derives columns from."""
        requirements = self._assembler.requirements
        sources = {column.source for column in requirements.derived_columns}
        data = requirements.declared.data
        return tuple(
            column
            for column in data.columns
            if column.known == "before" and (column.name in requirements.columns or column.name in sources)
        )

    @property
    def code_columns(self) -> frozenset[str]:
        """Those whose values are only looked up; those that are numbers too have no value that training never saw."""
        roles_by_column = self._assembler.requirements.columns
        return frozenset(name for name, roles in roles_by_column.items() if roles == {"code"})

    @property
    def key_columns(self) -> frozenset[str]:
        """Those that name the user or the item."""
        data = self._assembler.requirements.declared.data
        return frozenset(name for name in (data.user, data.item) if name is not None)

    def tensors(self, rows: pl.DataFrame, day: date) -> Tensors:
        """Return rows of one day as tensors of the model."""
        return dict(self._assembler.tensors(rows, day))

    def sample(self, count: int) -> Iterator[tuple[date, pl.DataFrame, npt.NDArray[np.bool_]]]:
        """Yield rows with training's scores by day, whole slates together, and which of them are of the sample.

        Args:
            count: Most rows of the sample, at equal distances in the reference rows.
        """
        reference_rows = self._reference.rows.gather_every(-(-self._reference.rows.height // count))
        for day, rows in self._days(reference_rows):
            yield day, rows, rows["score"].is_not_null().to_numpy()

    def differing_inputs(self, impression: int) -> tuple[str, ...]:
        """Return the columns of a row's inputs that differ from the training table's query."""
        transformer = Transformer.load(self._paths[0], Runtime().engine, self._paths[1])
        reference_row = self._reference.rows.filter(pl.col(Columns.IMPRESSION) == impression)
        for day, rows in self._days(reference_row):
            served = dict(self._assembler.tensors(rows, day))
            table = encode(transformer.look_up(rows, day), self.signature, self._plan.declared)
            is_compared = rows["score"].is_not_null().to_numpy()
            served_row, table_row = (
                {name: tensor[is_compared] for name, tensor in tensors.items()} for tensors in (served, table)
            )
            return tuple(differing_inputs(self.signature, served_row, table_row))
        return ()

    def edge_case_difference(self) -> str | None:
        """Return how serving differs from training for edge-case values; None when it does not.

        Nulls, empty texts or infinities may occur in none of the reference rows.
        """
        day, rows = self._days(self._reference.rows.tail(1))[0]
        transformer = Transformer.load(self._paths[0], Runtime().engine, self._paths[1])
        return edge_case_difference(self._assembler, self.signature, rows.head(1), day, transformer.look_up)

    def _days(self, reference_rows: pl.DataFrame) -> list[tuple[date, pl.DataFrame]]:
        """Return the reference rows by day and file, with the other rows of their slates, whose score is null."""
        keys = reference_rows.select(Columns.IMPRESSION, _TRUTH, "score", *self._further_columns)
        rows_by_day = []
        for day, rows in self._frames(set(reference_rows[Columns.DAY].to_list())):
            matched = rows.join(keys, Columns.IMPRESSION, maintain_order="left")
            if SLATE in rows.columns and matched.height:
                slates = rows.join(matched.select(SLATE).unique(), SLATE, "semi", maintain_order="left")
                matched = slates.join(keys, Columns.IMPRESSION, "left", maintain_order="left")
            rows_by_day += (
                [(day, moment_rows) for moment_rows in self._split_by_moment(matched)] if matched.height else []
            )
        return rows_by_day

    def _frames(self, days: set[date]) -> Iterator[tuple[date, pl.DataFrame]]:
        for part in self._table.days:
            if part.day in days:
                yield from ((part.day, rows) for rows in read_day(self._table, part, self._plan))

    def _split_by_moment(self, rows: pl.DataFrame) -> list[pl.DataFrame]:
        """Return the rows of a day, split into rows that see the same tiles."""
        if not self._tiles.within_days:
            return [rows]
        numbers_by_moment: dict[datetime, list[int]] = {}
        for number, time in enumerate(rows[Columns.TIME].to_list()):
            numbers_by_moment.setdefault(self._tiles.known_at(time), []).append(number)
        return [rows[numbers] for _, numbers in sorted(numbers_by_moment.items())]
