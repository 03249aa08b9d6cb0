"""Scores rows with Triton: splits large batches, and retries or uses another replica while Triton restarts."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tenacity import AsyncRetrying, RetryError, retry_if_exception, stop_after_delay, wait_fixed

from shortlist.serving.server.features.tensor_assembler import Tensors
from shortlist.serving.server.requests.admission import AdmissionSlot
from shortlist.serving.server.requests.request_errors import BadScoresError, ModelUnavailableError
from shortlist.serving.server.runtime.settings import ServerSettings
from shortlist.serving.server.scoring.triton_client import TritonClient, TritonError

Scores = NDArray[np.float32]

_RETRY_SECONDS: Final = 0.1
_UNAVAILABLE: Final = 503
_FRESH_SECONDS: Final = 1.0
"""A Triton that scored rows within this time counts as ready."""
_READINESS_TIMEOUT_SECONDS: Final = 1.0


class Predictor:
    """Scores rows with the server's own Triton, or with another replica's while that one cannot be reached.

    Args:
        settings: Contain the addresses of the Tritons.
        one_row: Tensors of one row of null values, scored by readiness checks.
        scores_per_row: Number of scores per row: more than one with further labels.
    """

    def __init__(self, settings: ServerSettings, one_row: Tensors, scores_per_row: int = 1) -> None:
        self._scores_per_row = scores_per_row
        self._hold_seconds = settings.serving.hold_seconds
        self._max_rows = settings.serving.batching.max_batch_rows
        addresses = (settings.predictor, *settings.spare_predictors)
        self._tritons = [TritonClient(address, settings.model, settings.version) for address in addresses]
        self._one_row = one_row
        self._last_scored = -math.inf
        """Time of the last success (`time.monotonic`); minus infinity after a failure."""
        self._readiness_lock = asyncio.Lock()

    async def scores(self, tensors: Tensors, rows: int, slot: AdmissionSlot | None = None) -> Scores:
        """Return a score per row, shape (rows,); with further labels (rows, 1 + further labels).

        Args:
            tensors: Inputs of the model, each with `rows` rows.
            rows: Number of rows; Triton is not called when it is 0.
            slot: Admission slot of the request, released while no Triton can be reached.

        Raises:
            ModelUnavailableError: No Triton answered within `serving.hold_seconds`.
            BadScoresError: Triton refused the request, or returned a wrong number of scores.
        """
        if not rows:
            return np.zeros((0, self._scores_per_row) if self._scores_per_row > 1 else 0, np.float32)
        starts = range(0, rows, self._max_rows)
        if len(starts) == 1:
            scores = await self._score_with_retries(tensors, slot)
        else:
            parts = [
                {name: tensor[start : start + self._max_rows] for name, tensor in tensors.items()} for start in starts
            ]
            scores = np.concatenate(await asyncio.gather(*(self._score_with_retries(part, slot) for part in parts)))
        if len(scores) != rows * self._scores_per_row:
            expected = f"; wanted {rows * self._scores_per_row}" if self._scores_per_row > 1 else ""
            raise BadScoresError(f"the model gave {len(scores)} scores for {rows} rows{expected}")
        return scores.reshape(rows, self._scores_per_row) if self._scores_per_row > 1 else scores

    async def is_ready(self) -> bool:
        """Whether rows can be scored: some were within the last second, or one row is scored now."""
        async with self._readiness_lock:
            if time.monotonic() - self._last_scored < _FRESH_SECONDS:
                return True
            try:
                async with asyncio.timeout(_READINESS_TIMEOUT_SECONDS):
                    return len(await self._score(self._one_row)) == self._scores_per_row
            except (OSError, TritonError):
                return False

    def close(self) -> None:
        """Close the connections."""
        for triton in self._tritons:
            triton.close()

    async def _score_with_retries(self, tensors: Tensors, slot: AdmissionSlot | None) -> Scores:
        try:
            return await self._score(tensors)  # setting up retries costs time even when nothing fails
        except (OSError, TritonError) as error:
            if not _is_transient(error):
                raise _request_error(error) from None
            if slot is not None:
                slot.release()
        retrying = AsyncRetrying(
            stop=stop_after_delay(self._hold_seconds),
            wait=wait_fixed(_RETRY_SECONDS),
            retry=retry_if_exception(_is_transient),
        )
        try:
            async for attempt in retrying:
                if slot is not None:
                    await slot.reacquire()
                with attempt:
                    return await self._score(tensors)
                if slot is not None:
                    slot.release()
        except RetryError as error:
            raise ModelUnavailableError(
                f"the model server cannot be reached for {self._hold_seconds:g} s ({error.last_attempt.exception()});"
                " try again later"
            ) from None
        except (OSError, TritonError) as error:
            raise _request_error(error) from None
        raise AssertionError("an attempt returns or raises")

    async def _score(self, tensors: Tensors) -> Scores:
        """Return the scores of the first Triton that can be reached."""
        for triton in self._tritons:
            try:
                scores = await triton.scores(tensors)
            except (OSError, TritonError) as error:
                self._last_scored = -math.inf
                if triton is self._tritons[-1] or not _is_transient(error):
                    raise
            else:
                self._last_scored = time.monotonic()
                return scores
        raise AssertionError("there is at least one")


def _is_transient(error: BaseException) -> bool:
    """Whether a retry may succeed: Triton, or its model process, is being restarted."""
    if isinstance(error, TritonError):
        return error.status == _UNAVAILABLE or "stub process" in str(error).lower()
    return isinstance(error, OSError) and not isinstance(error, TimeoutError)


def _request_error(error: OSError | TritonError) -> ModelUnavailableError | BadScoresError:
    if isinstance(error, TimeoutError):
        return ModelUnavailableError("the model server did not answer within a minute")
    return BadScoresError(f"the model server refused: {error}")
