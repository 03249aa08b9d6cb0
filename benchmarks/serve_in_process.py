"""In-process: the same raw keys, looked up and scored by the code that serves them, without any server."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from benchmarks.serve_callers import WARM
from benchmarks.serve_scorers import Scorer
from benchmarks.serve_world import CANDIDATES, Question
from shortlist.serving.server.protocols.v2 import read_body, write_answer
from shortlist.serving.server.server import ServerComponents, read_settings
from shortlist.serving.traffic.requests import HEADER_LENGTH, prepare


class InProcess:
    """The objects of a version's server, and its program, answering one question again and again."""

    def __init__(self, settings: Path, question: Question, scorer: Scorer, log: Path) -> None:
        """Read what the server reads.

        Args:
            settings: File that the server was started with.
            question: What is asked.
            scorer: The version's program, without Triton, with the question's tensors.
            log: Folder for what the objects here would log.
        """
        own_settings = read_settings(settings).model_copy(update={"predictions": log})
        self._parts, self._scorer = ServerComponents(own_settings), scorer
        self._prepared = prepare(question.inputs, "http", own_settings.model)
        self._head: dict[str, Any] = {
            "model_name": own_settings.model,
            "model_version": "1",
            "id": "b",
            "parameters": {},
        }
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        """Return itself when the views are in place."""
        self._parts.refresh.start()
        while self._parts.refresh.current is None:
            time.sleep(0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of everything."""
        self._runner.run(self._parts.close())
        self._runner.close()

    def timed(self, calls: int) -> list[float]:
        """Return the milliseconds of calls, after some that do not count."""
        return self._runner.run(self._timed(calls + WARM))[WARM:]

    async def _timed(self, calls: int) -> list[float]:
        # In turn, as in one program: each finds the processor's caches as the other leaves them.
        return [await self._time_request() + self._scorer.timed(CANDIDATES, 1, warm=0)["ms"][0] for _ in range(calls)]

    async def _time_request(self) -> float:
        """Do everything but scoring; return the milliseconds."""
        service, scores = self._parts.service, np.zeros(CANDIDATES, np.float32)
        start = time.perf_counter_ns()
        body = read_body(self._prepared.body, self._prepared.headers.get(HEADER_LENGTH))
        inputs = service.inputs.read(body.tensors, time.time_ns() // 1_000)
        tables, _ = await service.tables(inputs)
        service.tensors(inputs, tables)
        write_answer(self._head, scores, body.binary)
        return (time.perf_counter_ns() - start) / 1e6
