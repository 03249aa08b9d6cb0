"""Asking Triton for scores: rows cut to what it takes at once, and patience while it is being restarted."""

from __future__ import annotations

import asyncio
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tenacity import AsyncRetrying, RetryError, retry_if_exception, stop_after_delay, wait_fixed

from shortlist.serving.online.assemble import Tensors
from shortlist.serving.online.failures import BadScoresError, UnavailableError
from shortlist.serving.online.settings import ServerSettings
from shortlist.serving.online.triton_client import TritonClient, TritonError

Scores = NDArray[np.float32]

_PAUSE_SECONDS: Final = 0.1
_UNAVAILABLE: Final = 503


class Predictor:
    """One model of one Triton."""

    def __init__(self, settings: ServerSettings) -> None:
        self._hold_seconds = settings.serving.hold_seconds
        self._max_rows = settings.serving.batching.max_batch_rows
        self._triton = TritonClient(settings.predictor, settings.model, settings.version)

    async def scores(self, tensors: Tensors, rows: int) -> Scores:
        """Return a score per row.

        Args:
            tensors: The inputs of the model, all of so many rows.
            rows: Number of rows; none is answered without asking.

        Raises:
            UnavailableError: Triton could not be reached, or broke, for longer than a request may wait.
            BadScoresError: It refused, or did not give one finite number per row.
        """
        if not rows:
            return np.zeros(0, np.float32)
        starts = range(0, rows, self._max_rows)
        if len(starts) == 1:
            scores = await self._patient(tensors)
        else:
            parts = [{name: each[at : at + self._max_rows] for name, each in tensors.items()} for at in starts]
            scores = np.concatenate(await asyncio.gather(*map(self._patient, parts)))
        if len(scores) != rows:
            raise BadScoresError(f"the model gave {len(scores)} scores for {rows} rows")
        return scores

    async def is_ready(self) -> bool:
        """Whether Triton says that the model is ready."""
        try:
            return await self._triton.is_ready()
        except OSError:
            return False

    def close(self) -> None:
        """Close the connections."""
        self._triton.close()

    async def _patient(self, tensors: Tensors) -> Scores:
        try:
            return await self._triton.scores(tensors)  # retrying costs even where nothing fails
        except (OSError, TritonError) as error:
            if not _passes(error):
                raise _refusal(error) from None
        retrying = AsyncRetrying(
            stop=stop_after_delay(self._hold_seconds),
            wait=wait_fixed(_PAUSE_SECONDS),
            retry=retry_if_exception(_passes),
        )
        try:
            async for attempt in retrying:
                with attempt:
                    return await self._triton.scores(tensors)
        except RetryError as error:
            raise UnavailableError(
                f"the model server cannot be reached for {self._hold_seconds:g} s ({error.last_attempt.exception()});"
                " try again later"
            ) from None
        except (OSError, TritonError) as error:
            raise _refusal(error) from None
        raise AssertionError("an attempt returns or raises")


def _passes(error: BaseException) -> bool:
    """Whether it may work a moment later: Triton, or the process in which it runs the model, is being restarted."""
    if isinstance(error, TritonError):
        return error.status == _UNAVAILABLE or "stub process" in str(error).lower()
    return isinstance(error, OSError) and not isinstance(error, TimeoutError)


def _refusal(error: OSError | TritonError) -> UnavailableError | BadScoresError:
    if isinstance(error, TimeoutError):
        return UnavailableError("the model server did not answer within a minute")
    return BadScoresError(f"the model server refused: {error}")
