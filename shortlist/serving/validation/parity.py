"""Do the exported file and a real Triton give the scores that training gave?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shortlist.contracts import ShortlistError
from shortlist.evaluation.export_validation import LargestDifference, ScoreParity
from shortlist.evaluation.metrics import UnmeasurableError, auc
from shortlist.serving.export.onnx_session import session
from shortlist.serving.export.signature import FOLDER, SCORE
from shortlist.serving.traffic.answers import ClientResponse
from shortlist.serving.traffic.client import Endpoint, connect
from shortlist.serving.traffic.ledger import Entry
from shortlist.serving.traffic.load import DueRequest, Load
from shortlist.serving.validation.planted import Tensors
from shortlist.serving.validation.rows import Batch, ServedRows

_PIECE_ROWS: Final = 1_024
_AT_ONCE: Final = 2
"""Requests under way; Triton may join them, as it may in service."""

Scores = npt.NDArray[np.float32]


class ScoringError(ShortlistError):
    """The exported model gave no scores."""


def exported_scores(model: Path, batches: list[Batch]) -> Scores:
    """Return the scores that the exported file gives in this process, row after row; of a row, those of all labels.

    Raises:
        ScoringError: It does not run.
    """
    try:
        running = session(model / FOLDER)
        pieces = [running.run([SCORE], piece)[0].ravel() for piece in _pieces(batches)]
    except Exception as error:  # onnxruntime raises what it likes
        raise ScoringError(f"the exported file does not run: {error}") from error
    return np.concatenate(pieces).astype(np.float32)


def triton_scores(port: int, model: str, batches: list[Batch]) -> Scores:
    """Return the scores that a Triton gives, likewise.

    Args:
        port: Its gRPC port.
        model: Name of the model.
        batches: The rows.

    Raises:
        ScoringError: It does not answer a request.
    """
    return asyncio.run(_triton_scores(port, model, batches))


async def _triton_scores(port: int, model: str, batches: list[Batch]) -> Scores:
    found: dict[str, Scores] = {}

    def note(entry: Entry, answer: ClientResponse) -> None:
        if answer.scores is None:
            raise ScoringError(f"Triton did not score {entry.rows} rows: {answer.status} {answer.error}")
        found[entry.id] = answer.scores

    of_row = batches[0].all_references.shape[1]
    async with connect(Endpoint(port=port, model=model, protocol="grpc", scores_per_row=of_row)) as client:
        asks = [DueRequest(client.prepare(piece), f"parity-{number}") for number, piece in enumerate(_pieces(batches))]
        try:
            await Load(client, iter(asks), on_answer=note).closed(_AT_ONCE)
        except* ScoringError as errors:
            raise errors.exceptions[0] from None
    return np.concatenate([found[ask.id] for ask in asks])


def compare(served: ServedRows, batches: list[Batch], scores: Scores, furthest: float) -> ScoreParity:
    """Return how scores agree with training's; where they do not, with the inputs that differ.

    Args:
        served: Where the rows came from.
        batches: The rows.
        scores: Their scores, in that order, as `exported_scores` gives them.
        furthest: Differences up to here are none.

    Raises:
        ScoringError: There are too many scores, or too few.
    """
    impressions = np.concatenate([batch.impressions for batch in batches])
    reference = np.concatenate([batch.reference for batch in batches])
    labels = np.concatenate([batch.labels for batch in batches])
    wanted = np.concatenate([batch.all_references for batch in batches])
    if scores.size != wanted.size:
        raise ScoringError(f"there are {scores.size} scores of {len(wanted)} rows; wanted {wanted.shape[1]} of each")
    by_label = scores.reshape(wanted.shape)
    found = worst_of([agreement(impressions, *pair) for pair in zip(wanted.T, by_label.T, strict=True)])
    found = found.model_copy(update={"auc_difference": _auc_difference(labels, reference, by_label[:, 0])})
    if found.worst is None or (found.max_difference or 0) <= furthest:
        return found
    inputs = served.differing_inputs(found.worst.impression)
    return found.model_copy(update={"worst": found.worst.model_copy(update={"inputs": inputs})})


def _auc_difference(labels: npt.NDArray[np.float64], reference: Scores, got: Scores) -> float | None:
    try:
        return abs(auc(labels, reference.astype(np.float64)) - auc(labels, got.astype(np.float64)))
    except UnmeasurableError:  # one class, or scores that are none
        return None


def _pieces(batches: list[Batch]) -> Iterator[Tensors]:
    for batch in batches:
        for start in range(0, batch.impressions.size, _PIECE_ROWS):
            yield {name: tensor[start : start + _PIECE_ROWS] for name, tensor in batch.tensors.items()}


Floats = npt.NDArray[np.floating[Any]]

MARGIN: Final = 1e-6
"""Rows whose reference scores are closer may come in any order."""


def agreement(impressions: npt.NDArray[np.int64], reference: Floats, got: Floats) -> ScoreParity:
    """Return how scores agree with the reference, row by row.

    Args:
        impressions: Number of each row's impression, shape (rows,).
        reference: Training's scores, same shape.
        got: The others, same shape.
    """
    assert impressions.shape == reference.shape == got.shape
    finite = np.isfinite(got)
    rows, broken = int(finite.sum()), int((~finite).sum())
    if not rows:
        return ScoreParity(rows=reference.size, not_finite=broken, problem="" if broken else "there are no scores")
    impressions, reference, got = impressions[finite], reference[finite].astype(float), got[finite].astype(float)
    differences = np.abs(reference - got)
    worst = int(differences.argmax())
    return ScoreParity(
        rows=rows + broken,
        max_difference=float(differences[worst]),
        rank_differences=rank_differences(reference, got),
        not_finite=broken,
        worst=LargestDifference(
            impression=int(impressions[worst]), reference=float(reference[worst]), score=float(got[worst])
        ),
    )


def worst_of(columns: Sequence[ScoreParity]) -> ScoreParity:
    """Return how the scores of several labels agree: as those that agree the least; exchanged pairs are added up."""
    broken = next((column for column in columns if column.max_difference is None), None)
    worst = broken or max(columns, key=lambda column: column.max_difference or 0.0)
    return worst.model_copy(
        update={
            "not_finite": sum(column.not_finite for column in columns),
            "rank_differences": sum(column.rank_differences or 0 for column in columns),
        }
    )


def rank_differences(reference: Floats, got: Floats, margin: float = MARGIN) -> int:
    """Return how many pairs are in the other order, or tied, although the reference tells them apart.

    Counted exactly, in O(n log^2 n): sorted by reference, every row asks how many of the rows that lie more than the
    margin above it score no higher, block by block of a merge-sort tree.

    Args:
        reference: Shape (rows,), finite.
        got: Shape (rows,), finite.
        margin: Pairs whose references differ by no more are not counted.

    >>> rank_differences(np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.1, 0.3, 0.2, 0.3]))
    2
    """
    if reference.size < 2:
        return 0
    order = np.argsort(reference, kind="stable")
    above = np.searchsorted(reference[order], reference[order] + margin, side="right")
    ranks = np.unique(got[order], return_inverse=True)[1].astype(np.int64)
    rows = ranks.size
    beyond = rows  # rank of the padding: above every query
    padded = np.full(1 << (rows - 1).bit_length(), beyond, np.int64)
    padded[:rows] = ranks
    total, width = 0, 1
    while width <= padded.size:
        blocks = np.sort(padded.reshape(-1, width), axis=1)
        keys = (blocks + np.arange(len(blocks))[:, None] * (beyond + 1)).ravel()
        block = above // width
        # A range that begins with the right one of two blocks takes it whole; what is left begins at the next pair.
        asks = (block % 2 == 1) & (above < padded.size)
        block, asking = block[asks], ranks[asks]
        total += int((np.searchsorted(keys, block * (beyond + 1) + asking, side="right") - block * width).sum())
        above[asks] += width
        width *= 2
    return total
