"""Compares the scores of the exported file and of a real Triton with training's scores."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shortlist.contracts import NotMeasuredError, ShortlistError
from shortlist.evaluation.gates.export_validation import LargestDifference, ScoreParity
from shortlist.evaluation.metrics.pointwise import UnmeasurableError, auc
from shortlist.serving.export.onnx_session import create_session
from shortlist.serving.export.signature import FOLDER, SCORE
from shortlist.serving.traffic.answers import ClientResponse
from shortlist.serving.traffic.client import Endpoint, connect
from shortlist.serving.traffic.ledger import LedgerEntry
from shortlist.serving.traffic.load import DueRequest, Load
from shortlist.serving.validation.edge_cases import Tensors
from shortlist.serving.validation.served_rows import ServedBatch, ServedRows
from shortlist.storage.artefacts import is_disk_full

_CHUNK_ROWS: Final = 1_024
_CONCURRENT_REQUESTS: Final = 2
"""Concurrent requests, which Triton may batch, as it may when serving."""

Scores = npt.NDArray[np.float32]


class ScoringError(ShortlistError):
    """The exported model returned no scores."""


def score_exported(model: Path, batches: list[ServedBatch]) -> Scores:
    """Return the scores of the exported file, run in this process: of each row, the scores of all labels.

    Raises:
        ScoringError: The file does not run.
        NotMeasuredError: There is no memory, or no space on a disk, to run it.
    """
    try:
        onnx_session = create_session(model / FOLDER)
        scores = [onnx_session.run([SCORE], chunk)[0].ravel() for chunk in _iter_chunks(batches)]
    except Exception as error:  # onnxruntime raises what it likes
        if isinstance(error, MemoryError) or is_disk_full(error):
            raise NotMeasuredError(f"gate 'parity' is not measured: {type(error).__name__}: {error}") from error
        raise ScoringError(f"the exported file does not run: {error}") from error
    return np.concatenate(scores).astype(np.float32)


def score_on_triton(port: int, model: str, batches: list[ServedBatch]) -> Scores:
    """Return the scores of a Triton, in the same order as `score_exported`.

    Args:
        port: gRPC port of Triton.
        model: Name of the model.
        batches: The rows.

    Raises:
        ScoringError: Triton did not answer a request.
    """
    return asyncio.run(_score_on_triton(port, model, batches))


async def _score_on_triton(port: int, model: str, batches: list[ServedBatch]) -> Scores:
    scores_by_request: dict[str, Scores] = {}

    def record_scores(entry: LedgerEntry, answer: ClientResponse) -> None:
        if answer.scores is None:
            raise ScoringError(f"Triton did not score {entry.rows} rows: {answer.status} {answer.error}")
        scores_by_request[entry.id] = answer.scores

    scores_per_row = batches[0].all_references.shape[1]
    async with connect(Endpoint(port=port, model=model, protocol="grpc", scores_per_row=scores_per_row)) as client:
        requests = [
            DueRequest(client.prepare(chunk), f"parity-{number}") for number, chunk in enumerate(_iter_chunks(batches))
        ]
        try:
            await Load(client, iter(requests), on_answer=record_scores).run_closed(_CONCURRENT_REQUESTS)
        except ExceptionGroup as errors:  # not `except*`: Python 3.11.2 wraps what it raises in another group
            raise next((error for error in errors.exceptions if isinstance(error, ScoringError)), errors) from None
    return np.concatenate([scores_by_request[request.id] for request in requests])


def compare_scores(
    served: ServedRows, batches: list[ServedBatch], scores: Scores, max_difference: float
) -> ScoreParity:
    """Return the agreement of scores with training's scores; on disagreement, with the inputs that differ.

    Args:
        served: Source of the rows.
        batches: The rows.
        scores: Scores of the rows, as returned by `score_exported`.
        max_difference: Largest difference that counts as agreement.

    Raises:
        ScoringError: The number of scores is wrong.
    """
    impressions = np.concatenate([batch.impressions for batch in batches])
    reference = np.concatenate([batch.reference for batch in batches])
    labels = np.concatenate([batch.labels for batch in batches])
    reference_by_label = np.concatenate([batch.all_references for batch in batches])
    if scores.size != reference_by_label.size:
        raise ScoringError(
            f"there are {scores.size} scores of {len(reference_by_label)} rows; wanted {reference_by_label.shape[1]}"
            " of each"
        )
    scores_by_label = scores.reshape(reference_by_label.shape)
    parity = combine_labels(
        [score_parity(impressions, *pair) for pair in zip(reference_by_label.T, scores_by_label.T, strict=True)]
    )
    parity = parity.model_copy(update={"auc_difference": _auc_difference(labels, reference, scores_by_label[:, 0])})
    if parity.worst is None or (parity.max_difference or 0) <= max_difference:
        return parity
    inputs = served.differing_inputs(parity.worst.impression)
    return parity.model_copy(update={"worst": parity.worst.model_copy(update={"inputs": inputs})})


def _auc_difference(labels: npt.NDArray[np.float64], reference: Scores, scores: Scores) -> float | None:
    try:
        return abs(auc(labels, reference.astype(np.float64)) - auc(labels, scores.astype(np.float64)))
    except UnmeasurableError:  # one class, or scores that are not finite
        return None


def _iter_chunks(batches: list[ServedBatch]) -> Iterator[Tensors]:
    for batch in batches:
        for start in range(0, batch.impressions.size, _CHUNK_ROWS):
            yield {name: tensor[start : start + _CHUNK_ROWS] for name, tensor in batch.tensors.items()}


Floats = npt.NDArray[np.floating[Any]]

MARGIN: Final = 1e-6
"""Rows whose reference scores differ by less may come in any order."""


def score_parity(impressions: npt.NDArray[np.int64], reference: Floats, scores: Floats) -> ScoreParity:
    """Return the agreement of scores with reference scores, row by row.

    Args:
        impressions: Number of each row's impression, shape (rows,).
        reference: Training's scores, same shape.
        scores: Scores to compare, same shape.
    """
    assert impressions.shape == reference.shape == scores.shape
    finite = np.isfinite(scores)
    rows, not_finite = int(finite.sum()), int((~finite).sum())
    if not rows:
        return ScoreParity(
            rows=reference.size, not_finite=not_finite, problem="" if not_finite else "there are no scores"
        )
    impressions, reference, scores = impressions[finite], reference[finite].astype(float), scores[finite].astype(float)
    differences = np.abs(reference - scores)
    worst = int(differences.argmax())
    return ScoreParity(
        rows=rows + not_finite,
        max_difference=float(differences[worst]),
        rank_differences=rank_differences(reference, scores),
        not_finite=not_finite,
        worst=LargestDifference(
            impression=int(impressions[worst]), reference=float(reference[worst]), score=float(scores[worst])
        ),
    )


def combine_labels(columns: Sequence[ScoreParity]) -> ScoreParity:
    """Return the agreement of several labels: that of the worst label, with rank differences added up."""
    unscored = next((column for column in columns if column.max_difference is None), None)
    worst = unscored or max(columns, key=lambda column: column.max_difference or 0.0)
    return worst.model_copy(
        update={
            "not_finite": sum(column.not_finite for column in columns),
            "rank_differences": sum(column.rank_differences or 0 for column in columns),
        }
    )


def rank_differences(reference: Floats, scores: Floats, margin: float = MARGIN) -> int:
    """Return the number of pairs in another order, or tied, that differ in the reference.

    Counted exactly, in O(n log^2 n), with a merge-sort tree: sorted by reference, each row counts the rows more than
    the margin above it that score no higher.

    Args:
        reference: Shape (rows,), finite.
        scores: Shape (rows,), finite.
        margin: Pairs whose references differ by at most this much are not counted.

    >>> rank_differences(np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.1, 0.3, 0.2, 0.3]))
    2
    """
    if reference.size < 2:
        return 0
    order = np.argsort(reference, kind="stable")
    range_starts = np.searchsorted(reference[order], reference[order] + margin, side="right")
    ranks = np.unique(scores[order], return_inverse=True)[1].astype(np.int64)
    rows = ranks.size
    padding_rank = rows  # rank of the padding: above every query
    padded = np.full(1 << (rows - 1).bit_length(), padding_rank, np.int64)
    padded[:rows] = ranks
    total, width = 0, 1
    while width <= padded.size:
        blocks = np.sort(padded.reshape(-1, width), axis=1)
        keys = (blocks + np.arange(len(blocks))[:, None] * (padding_rank + 1)).ravel()
        block = range_starts // width
        # A range that begins at the second block of a pair counts it as a whole; the rest begins at the next pair.
        takes_block = (block % 2 == 1) & (range_starts < padded.size)
        block, query_ranks = block[takes_block], ranks[takes_block]
        total += int(
            (np.searchsorted(keys, block * (padding_rank + 1) + query_ranks, side="right") - block * width).sum()
        )
        range_starts[takes_block] += width
        width *= 2
    return total
