"""Sends cases to a server, and says which of them it failed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from benchmarks.fuzz.cases import (
    RECOMMEND_INFER,
    GRPCCase,
    HTTPCase,
    good_request,
    good_slate,
    grpc_case,
    http_case,
    post,
)

_SECONDS: Final = 30.0
"""Longest wait for one answer."""
_SILENCE_SECONDS: Final = 0.25
"""Wait for an answer to what may be no whole request."""
_CHECK_EVERY: Final = 500
_REFUSALS: Final = frozenset(("OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED"))


@dataclass(frozen=True)
class Target:
    """Where a server listens, and what the good request is answered with."""

    http: int
    grpc: int
    scores: tuple[float, ...]


@dataclass
class Tally:
    """What came of the cases of one kind."""

    sent: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    """By HTTP status or code of gRPC's; `none`: nothing, or the connection was closed."""
    failures: list[str] = field(default_factory=list)
    """What must not happen: 5xx, UNKNOWN, no answer to a whole request, a wrong answer to the good one."""

    @property
    def server_errors(self) -> int:
        """5xx."""
        return sum(count for status, count in self.answers.items() if status.startswith("5"))


async def fuzz(target: Target, kind: str, numbers: range, seed: int, connections: int = 8) -> Tally:
    """Return what came of some cases of one kind."""
    tally, waiting = Tally(), iter(numbers)
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            work = _over_grpc if kind.endswith("grpc") else _over_http
            group.create_task(work(target, kind, waiting, seed, tally))
    return tally


async def _over_http(target: Target, kind: str, numbers: Iterator[int], seed: int, tally: Tally) -> None:
    line = _Line(target.http)
    for number in numbers:
        case = http_case(kind, seed, number)
        status = await line.answer(case)
        tally.sent += 1
        tally.answers[status] += 1
        if status.startswith("5") or (case.framed and status == "none"):
            tally.failures.append(f"{kind} {number}: {status}: {await _smaller(target, case, status)!r}")
        if number % _CHECK_EVERY == 0 and (problem := await line.check(target, kind)) is not None:
            tally.failures.append(f"{kind} {number}: {problem}")
    line.close()


async def _smaller(target: Target, case: HTTPCase, status: str) -> bytes:
    """Return a case that fails in the same way, with parts removed where that changes nothing."""
    sent, step = case.sent, max(1, len(case.sent) // 2)
    for _ in range(200):
        for at in range(0, len(sent), step):
            shortened = sent[:at] + sent[at + step :]
            line = _Line(target.http)
            answer = await line.answer(HTTPCase(shortened, framed=False))
            line.close()
            if answer == status:
                sent = shortened
                break
        else:
            if step == 1:
                break
            step //= 2
    return sent[:2_000]


async def _over_grpc(target: Target, kind: str, numbers: Iterator[int], seed: int, tally: Tally) -> None:
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{target.grpc}", [("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        for number in numbers:
            case = grpc_case(kind, seed, number)
            code, details = await _call(channel, case)
            tally.sent += 1
            tally.answers[code] += 1
            if code not in _REFUSALS:
                tally.failures.append(f"{kind} {number}: {code} ({details}): {case}"[:2_000])


async def _call(channel: Any, case: GRPCCase) -> tuple[str, str]:
    call = channel.unary_unary(case.method, request_serializer=None, response_deserializer=None)
    try:
        await call(case.message, metadata=case.metadata, timeout=_SECONDS)
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""


class _Line:
    """One connection of HTTP's, opened again when it is closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def answer(self, case: HTTPCase) -> str:
        """Return the status of the answer to a case; `none` where there is none."""
        status, _ = await self._ask(case.sent, _SECONDS if case.framed else _SILENCE_SECONDS)
        if not case.framed:
            self.close()  # what is left of it would be the next request's
        return status

    async def check(self, target: Target, kind: str) -> str | None:
        """Return what is wrong with the answer to the good request of a kind."""
        if kind.startswith("recommend"):
            status, body = await self._ask(post(json.dumps(good_slate()).encode(), path=RECOMMEND_INFER), _SECONDS)
            slate = json.loads(body)["outputs"][0]["data"] if status == "200" else ()
            return None if len(slate) == 3 else f"the good request for a slate got {status} and {len(slate)} items"
        status, body = await self._ask(post(json.dumps(good_request()).encode()), _SECONDS)
        if status != "200":
            return f"the good request got {status}"
        scores = json.loads(body)["outputs"][0]["data"]
        return None if scores == [*target.scores] else f"the good request got {scores}; wanted {target.scores}"

    def close(self) -> None:
        """Hang up."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def _ask(self, sent: bytes, seconds: float) -> tuple[str, bytes]:
        for fresh in (self._writer is None, True):  # an open one may have been closed meanwhile
            try:
                if self._writer is None or self._reader is None:
                    self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**20)
                self._writer.write(sent)
                async with asyncio.timeout(seconds):
                    return await self._received(self._reader)
            except TimeoutError:
                self.close()
                return "none", b""
            except (OSError, asyncio.IncompleteReadError):
                self.close()
                if fresh:
                    return "none", b""
        raise AssertionError("a fresh connection answers or does not")

    async def _received(self, reader: asyncio.StreamReader) -> tuple[str, bytes]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status, lines = head.split(" ", 2)[1], head.split("\r\n")[1:-2]
        if status == "100":
            return await self._received(reader)
        headers = dict(line.split(": ", 1) for line in lines)
        body = b""
        if "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SILENCE_SECONDS):
                    await reader.read()
            self.close()
        if headers.get("connection") == "close":
            self.close()
        return status, body


def table(tallies: dict[str, Tally], write: Callable[[str], Any]) -> None:
    """Write a line per kind."""
    write(f"{'kind':16} {'requests':>9} {'5xx':>5} {'UNKNOWN':>8} {'failures':>9}  answers\n")
    for kind, tally in tallies.items():
        answers = ", ".join(f"{status} {count}" for status, count in tally.answers.most_common())
        unknown_count = tally.answers["UNKNOWN"]
        write(
            f"{kind:16} {tally.sent:9} {tally.server_errors:5} {unknown_count:8} {len(tally.failures):9}  {answers}\n"
        )
