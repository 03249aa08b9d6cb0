"""Scored rows of the validation and test days, as a training step wrote them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow.parquet as pq

from shortlist.contracts import Columns, Files, best_column, label_column, score_column
from shortlist.evaluation.metrics.pointwise import PIECE_ROWS, Floats, UnmeasurableError, check_scores, row_pieces
from shortlist.storage.artefacts import IntegrityError, read_json
from shortlist.storage.row_digest import RowDigest, row_hashes

SPLIT = "split"
SCORE = "score"
REQUEST = "request_id"
LEARNT = "learnt"
"""Column: whether the model that gave the score has learnt the row."""
Clusters = npt.NDArray[np.integer[Any]]
_REQUIRED_COLUMNS = (Columns.IMPRESSION, Columns.LABEL, SPLIT, SCORE)


@dataclass(frozen=True)
class ScoredRows:
    """The rows of one split, ordered by impression."""

    frame: pl.DataFrame
    """All columns of the scores file but split and score; for a further label, `label` holds that label."""
    stored_labels: npt.NDArray[Any]
    """Labels as the file holds them, in a byte each; `labels` are numbers to compute with, in eight."""
    stored_scores: npt.NDArray[np.floating[Any]]
    """Scores as the file holds them, in four bytes each; see `scores`."""
    clusters: Clusters
    """Dense number of the row's user; the row's own number when the log names no users."""

    @property
    def labels(self) -> Floats:
        """0 or 1, shape (rows,)."""
        return self.stored_labels.astype(np.float64)

    @property
    def scores(self) -> Floats:
        """Probabilities, shape (rows,)."""
        return self.stored_scores.astype(np.float64)

    @property
    def users(self) -> npt.NDArray[np.intp] | None:
        """The row's cluster where it names its user, else -1; None when the log names no users."""
        if Columns.USER not in self.frame.columns:
            return None
        return np.where(self.frame[Columns.USER].is_null().to_numpy(), -1, self.clusters)

    @property
    def lists(self) -> npt.NDArray[np.intp] | None:
        """Dense number of the list in which the row was ranked, -1 for a row of no list; None when no list is known.

        A list is a request where rows name theirs, as live ones do; a slate where the log declares slates; otherwise
        a user's rows of a day.
        """
        users = self.users
        if users is not None and REQUEST in self.frame.columns:
            return _dense_numbers(self.frame[REQUEST])
        if Columns.SLATE in self.frame.columns:
            return _dense_numbers(self.frame.select(pl.struct(Columns.DAY, Columns.SLATE).rank("dense")).to_series())
        if users is None or Columns.DAY not in self.frame.columns:
            return users
        days = _dense_numbers(self.frame[Columns.DAY])
        return np.where((users < 0) | (days < 0), -1, users * (days.max(initial=0) + 1) + days)

    @property
    def weights(self) -> Floats | None:
        """See `read_weights`."""
        return read_weights(self.frame)

    @property
    def learnt(self) -> bool:
        """Whether the model that scored the rows has learnt some of them, so that they cannot judge it."""
        return LEARNT in self.frame.columns and bool(self.frame[LEARNT].any())

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stored_labels.size

    @property
    def positives(self) -> int:
        """Rows with label 1."""
        return int(np.count_nonzero(self.stored_labels))

    @property
    def mean_score(self) -> float:
        """Mean of the scores, weighted as the rows are."""
        weights = self.weights
        if weights is None:
            return float(self.stored_scores.mean(dtype=np.float64))  # casts piece by piece
        return float(np.average(self.scores, weights=weights))

    @property
    def digest(self) -> str:
        """Digest of impressions and labels: models that were scored on the same rows have the same."""
        digest = RowDigest()
        for rows in self.frame.select(Columns.IMPRESSION, Columns.LABEL).iter_slices(PIECE_ROWS):
            digest.add(row_hashes(rows))
        return str(digest)

    def without_impressions(self) -> ScoredRows:
        """Return the rows without their impressions, which no metric reads, nor the days of a log without lists."""
        names = [Columns.IMPRESSION, LEARNT]
        if not {Columns.USER, Columns.SLATE, REQUEST} & set(self.frame.columns):
            names.append(Columns.DAY)
        return replace(self, frame=self.frame.drop(names, strict=False))

    def filter_rows(self, mask: npt.NDArray[np.bool_]) -> ScoredRows:
        """Return the rows where `mask`, shape (rows,), is true; users are numbered again."""
        clusters = np.unique(self.clusters[mask], return_inverse=True)[1]
        return ScoredRows(self.frame.filter(mask), self.stored_labels[mask], self.stored_scores[mask], clusters)


def read_weights(frame: pl.DataFrame) -> Floats | None:
    """Return the number of impressions that each row stands for; None where all stand for the same number."""
    if Columns.WEIGHT not in frame.columns:
        return None
    weights = frame[Columns.WEIGHT].cast(pl.Float64).fill_null(1.0).to_numpy()
    return None if weights.size == 0 or (weights == weights[0]).all() else weights


def further_labels(path: Path) -> tuple[str, ...]:
    """Return the further labels that a scores file has scores of; none where it cannot be read."""
    if not path.is_file():
        return ()
    prefix, names = score_column(""), pl.scan_parquet(path).collect_schema().names()
    return tuple(name.removeprefix(prefix) for name in names if name.startswith(prefix))


def read_scores(path: Path, split: Literal["validation", "test"], label: str = "") -> ScoredRows:
    """Return the rows of a split in a scores file.

    Args:
        path: The scores file.
        split: Part of the split to read.
        label: A further label; empty: the main label.

    Raises:
        UnmeasurableError: The file or a column is missing, there are no rows, an impression occurs twice, or a label or
            score is not valid.
    """
    columns = _check_columns(path, (label_column(label), score_column(label)) if label else ())
    scores_frame = pl.scan_parquet(path)
    if label:
        scores_frame = _select_label(scores_frame, columns, label)
    frame = scores_frame.filter(pl.col(SPLIT) == split).drop(SPLIT).collect(engine="streaming")
    if not frame[Columns.IMPRESSION].is_sorted():
        frame = frame.sort(Columns.IMPRESSION)
    labels, scores = _labels_and_scores(frame, path.name, split)
    if _repeats(frame[Columns.IMPRESSION]):
        raise UnmeasurableError(f"{path.name} scores an impression twice")
    return ScoredRows(frame.drop(SCORE), labels, scores, _number_clusters(frame))


class ScoredPiece(NamedTuple):
    """Consecutive rows of one split, in the order of the file."""

    frame: pl.DataFrame
    """The columns that were asked for."""
    labels: npt.NDArray[Any]
    scores: npt.NDArray[np.floating[Any]]


def iter_scores(path: Path, split: Literal["validation", "test"], columns: Iterable[str] = ()) -> Iterator[ScoredPiece]:
    """Yield the rows of a split in a scores file piece by piece: of many rows no more are in memory.

    Args:
        path: The scores file.
        split: Part of the split to read.
        columns: Further columns to read.

    Raises:
        UnmeasurableError: As `read_scores`, but for impressions that occur twice in different pieces.
    """
    _check_columns(path)
    names, rows = [*dict.fromkeys((*_REQUIRED_COLUMNS, *columns))], 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(PIECE_ROWS, columns=names):
            frame = cast(pl.DataFrame, pl.from_arrow(batch)).filter(pl.col(SPLIT) == split)
            rows += frame.height
            if frame.height:
                yield ScoredPiece(frame.select(columns), *_labels_and_scores(frame, path.name, split))
    if not rows:
        raise _no_rows_error(path.name, split)


def _check_columns(path: Path, further: Iterable[str] = ()) -> list[str]:
    """Return the names of the columns of a scores file, in which none is missing."""
    if not path.is_file():
        raise UnmeasurableError(_find_missing_reason(path))
    columns = pl.scan_parquet(path).collect_schema().names()
    for name in (*_REQUIRED_COLUMNS, *further):
        if name not in columns:
            raise UnmeasurableError(f"{path.name} has no column '{name}'")
    return columns


def _labels_and_scores(
    frame: pl.DataFrame, file: str, split: str
) -> tuple[npt.NDArray[Any], npt.NDArray[np.floating[Any]]]:
    """Return the labels and the scores of rows, checked."""
    if not frame.height:
        raise _no_rows_error(file, split)
    if frame[Columns.LABEL].null_count() or frame[Columns.IMPRESSION].null_count():
        raise UnmeasurableError(f"{file} holds {split} rows without a label or an impression")
    score = frame[SCORE] if frame[SCORE].dtype == pl.Float32 else frame[SCORE].cast(pl.Float64)
    labels, scores = frame[Columns.LABEL].to_numpy(), score.fill_null(float("nan")).to_numpy()
    check_scores(labels, scores)
    return labels, scores


def _no_rows_error(file: str, split: str) -> UnmeasurableError:
    return UnmeasurableError(f"{file} holds no {split} rows")


def _repeats(ordered: pl.Series) -> bool:
    """Return whether a value of a sorted column follows itself."""
    pieces = (ordered[piece.start : piece.stop + 1] for piece in row_pieces(ordered.len()))
    return any((values[1:] == values[:-1]).any() for values in pieces)


def _select_label(scores_frame: pl.LazyFrame, columns: list[str], label: str) -> pl.LazyFrame:
    """Return the rows with the columns of a further label in place of those of the main label."""
    renames = {label_column(label): Columns.LABEL, score_column(label): SCORE, best_column(label): Columns.BEST}
    return scores_frame.drop(set(renames.values()) & set(columns)).rename(renames, strict=False)


def check_same_rows(candidate: ScoredRows, reference: ScoredRows) -> None:
    """Raise where two models were scored on different rows.

    Raises:
        UnmeasurableError: The impressions or their labels differ.
    """
    candidate_impressions, reference_impressions = (
        candidate.frame[Columns.IMPRESSION],
        reference.frame[Columns.IMPRESSION],
    )
    if not candidate_impressions.equals(reference_impressions):
        common = candidate_impressions.is_in(reference_impressions.implode()).sum()
        raise UnmeasurableError(
            f"they were not scored on the same rows: {candidate_impressions.len()} and {reference_impressions.len()}"
            f" impressions, {common} in common"
        )
    if not np.array_equal(candidate.stored_labels, reference.stored_labels):
        raise UnmeasurableError("the same impressions carry different labels")


def select_common_rows(rows: ScoredRows, reference: ScoredRows) -> tuple[ScoredRows, ScoredRows]:
    """Return the rows that two models have both scored; labels, users and slices are those of the first.

    Raises:
        UnmeasurableError: They have no row in common.
    """
    impressions = rows.frame[Columns.IMPRESSION], reference.frame[Columns.IMPRESSION]
    common, referenced = (
        own.cast(pl.String).is_in(other.cast(pl.String).implode()).to_numpy()
        for own, other in (impressions, impressions[::-1])
    )
    if not common.any():
        raise UnmeasurableError("they have no test row in common")
    selected = rows.filter_rows(common)
    return selected, replace(selected, stored_scores=reference.stored_scores[referenced])


def _find_missing_reason(path: Path) -> str:
    try:
        return str(read_json(path.with_name(Files.PROBLEM))["problem"])
    except (IntegrityError, KeyError):
        return f"{path.name} is missing; the model was not scored"


def _number_clusters(frame: pl.DataFrame) -> Clusters:
    if Columns.USER not in frame.columns:
        return np.arange(frame.height, dtype=np.uint32)
    # Rows without a user form one cluster: nothing shows that they are independent.
    return np.unique(_dense_numbers(frame[Columns.USER]), return_inverse=True)[1]


def _dense_numbers(values: pl.Series) -> npt.NDArray[np.intp]:
    """Return a number per value, from 0; -1 for null."""
    return values.rank("dense").cast(pl.Int64).fill_null(0).to_numpy() - 1
