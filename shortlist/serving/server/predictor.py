"""Asking Triton for scores: rows cut to what it takes at once, another Triton or patience while it is restarted."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tenacity import AsyncRetrying, RetryError, retry_if_exception, stop_after_delay, wait_fixed

from shortlist.serving.server.admission import Place
from shortlist.serving.server.request_errors import BadScoresError, ModelUnavailableError
from shortlist.serving.server.settings import ServerSettings
from shortlist.serving.server.tensor_assembler import Tensors
from shortlist.serving.server.triton_client import TritonClient, TritonError

Scores = NDArray[np.float32]

_PAUSE_SECONDS: Final = 0.1
_UNAVAILABLE: Final = 503
_FRESH_SECONDS: Final = 1.0
"""Who scored rows this long ago can."""
_LONGEST_LOOK_SECONDS: Final = 1.0


class Predictor:
    """One model: of the server's own Triton, or of another replica's while that one cannot be reached.

    Args:
        settings: Name the Tritons.
        one_row: Tensors of one row that says nothing, to be scored when somebody asks whether that is possible.
        of_row: Scores that it gives a row: more than one where it has further labels.
    """

    def __init__(self, settings: ServerSettings, one_row: Tensors, of_row: int = 1) -> None:
        self._of_row = of_row
        self._hold_seconds = settings.serving.hold_seconds
        self._max_rows = settings.serving.batching.max_batch_rows
        addresses = (settings.predictor, *settings.spare_predictors)
        self._tritons = [TritonClient(address, settings.model, settings.version) for address in addresses]
        self._one_row = one_row
        self._scored = -math.inf
        """When rows were last scored; never, after it failed."""
        self._trying = asyncio.Lock()

    async def scores(self, tensors: Tensors, rows: int, place: Place | None = None) -> Scores:
        """Return a score per row, shape (rows,); with further labels (rows, 1 + further labels).

        Args:
            tensors: The inputs of the model, all of so many rows.
            rows: Number of rows; none is answered without asking.
            place: The request's; others have it while no Triton can be reached.

        Raises:
            ModelUnavailableError: No Triton could be reached, or all broke, for longer than a request may wait.
            BadScoresError: It refused, or did not give one finite number per row.
        """
        if not rows:
            return np.zeros((0, self._of_row) if self._of_row > 1 else 0, np.float32)
        starts = range(0, rows, self._max_rows)
        if len(starts) == 1:
            scores = await self._patient(tensors, place)
        else:
            parts = [{name: each[at : at + self._max_rows] for name, each in tensors.items()} for at in starts]
            scores = np.concatenate(await asyncio.gather(*(self._patient(part, place) for part in parts)))
        if len(scores) != rows * self._of_row:
            wanted = f"; wanted {rows * self._of_row}" if self._of_row > 1 else ""
            raise BadScoresError(f"the model gave {len(scores)} scores for {rows} rows{wanted}")
        return scores.reshape(rows, self._of_row) if self._of_row > 1 else scores

    async def is_ready(self) -> bool:
        """Whether rows can be scored: some were a moment ago, or one is now."""
        async with self._trying:
            if time.monotonic() - self._scored < _FRESH_SECONDS:
                return True
            try:
                async with asyncio.timeout(_LONGEST_LOOK_SECONDS):
                    return len(await self._asked(self._one_row)) == self._of_row
            except (OSError, TritonError):
                return False

    def close(self) -> None:
        """Close the connections."""
        for triton in self._tritons:
            triton.close()

    async def _patient(self, tensors: Tensors, place: Place | None) -> Scores:
        try:
            return await self._asked(tensors)  # retrying costs even where nothing fails
        except (OSError, TritonError) as error:
            if not _passes(error):
                raise _refusal(error) from None
            if place is not None:
                place.step_aside()
        retrying = AsyncRetrying(
            stop=stop_after_delay(self._hold_seconds),
            wait=wait_fixed(_PAUSE_SECONDS),
            retry=retry_if_exception(_passes),
        )
        try:
            async for attempt in retrying:
                if place is not None:
                    await place.come_back()
                with attempt:
                    return await self._asked(tensors)
                if place is not None:
                    place.step_aside()
        except RetryError as error:
            raise ModelUnavailableError(
                f"the model server cannot be reached for {self._hold_seconds:g} s ({error.last_attempt.exception()});"
                " try again later"
            ) from None
        except (OSError, TritonError) as error:
            raise _refusal(error) from None
        raise AssertionError("an attempt returns or raises")

    async def _asked(self, tensors: Tensors) -> Scores:
        """Return the scores of the first Triton that can be reached."""
        for triton in self._tritons:
            try:
                scores = await triton.scores(tensors)
            except (OSError, TritonError) as error:
                self._scored = -math.inf
                if triton is self._tritons[-1] or not _passes(error):
                    raise
            else:
                self._scored = time.monotonic()
                return scores
        raise AssertionError("there is at least one")


def _passes(error: BaseException) -> bool:
    """Whether it may work a moment later: Triton, or the process in which it runs the model, is being restarted."""
    if isinstance(error, TritonError):
        return error.status == _UNAVAILABLE or "stub process" in str(error).lower()
    return isinstance(error, OSError) and not isinstance(error, TimeoutError)


def _refusal(error: OSError | TritonError) -> ModelUnavailableError | BadScoresError:
    if isinstance(error, TimeoutError):
        return ModelUnavailableError("the model server did not answer within a minute")
    return BadScoresError(f"the model server refused: {error}")
