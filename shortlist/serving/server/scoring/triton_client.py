"""Triton's HTTP: a model's scores for tensors, over connections that stay open."""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import secrets
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from shortlist.serving.export.signature import SCORE
from shortlist.serving.server.scoring.triton_connection import TritonConnection, TritonResponse

_DATATYPES: Final = {"f8": "FP64", "i8": "INT64", "f4": "FP32"}
_REGIONS: Final = 8
"""Most requests that share memory at once; those beyond send their tensors along."""
_LONGEST_ANSWER_SECONDS: Final = 60.0
_LINES: Final = 64
"""Most requests under way at once; the rest waits here, not in as many connections."""
_UNIX: Final = "unix"
_LOST_REGION: Final = b"shared memory region"
"""What Triton says of a region that it does not know (any more)."""
_OUTPUTS: Final = [{"name": SCORE, "parameters": {"binary_data": True}}]

_log = logging.getLogger(__name__)


class TritonError(Exception):
    """Triton answered with an error."""

    def __init__(self, reply: TritonResponse) -> None:
        super().__init__(_error_in(reply))
        self.status = reply.status


class TritonClient:
    """Asks one version of one model.

    A Triton on the same machine reads the tensors from memory that is shared with it: a third of a megabyte for a
    thousand rows takes it half a millisecond to receive. One that cannot is found out at the first request.
    """

    def __init__(self, address: str, model: str, version: int) -> None:
        """Prepare; nothing is sent.

        Args:
            address: `host:port` of Triton's HTTP, or `unix:` and the path of its socket.
            model: Its name.
            version: The version.
        """
        kind, _, rest = address.partition(":")
        if kind == _UNIX:
            self._connect = partial(TritonConnection.connect_unix, rest)
        else:
            self._connect = partial(TritonConnection.connect, kind, int(rest))
        self._model = f"/v2/models/{model}/versions/{version}"
        self._room = asyncio.Semaphore(_LINES)
        self._idle: list[TritonConnection] = []
        self._lines: set[TritonConnection] = set()
        self._regions: dict[TritonConnection, SharedMemoryRegion] = {}
        self._shares = True

    async def scores(self, tensors: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return what the model says of some rows.

        Raises:
            TimeoutError: It did not answer within a minute.
            OSError: It cannot be reached, or went away.
            TritonError: It refused.
        """
        async with self._room:
            line = await self._line()
            try:
                async with asyncio.timeout(_LONGEST_ANSWER_SECONDS):
                    reply = await self._asked(line, tensors)
            except TimeoutError:
                line.close()
                raise
            finally:
                line.give_back()
        if reply.status != 200 or reply.header_length is None:
            raise TritonError(reply)
        return np.frombuffer(reply.body, np.float32, offset=reply.header_length).copy()  # aligned

    def close(self) -> None:
        """Hang up."""
        for line in self._lines:
            line.close()

    async def _line(self) -> TritonConnection:
        while self._idle:
            line = self._idle.pop()
            if line.is_open:
                return line
        # Without those of a Triton that has gone; the memory that was shared with it goes with them.
        self._lines = {line for line in self._lines if line.is_open}
        self._regions = {line: region for line, region in self._regions.items() if line.is_open}
        self._shares = self._shares or not self._lines
        line = await self._connect(self._reclaim_connection)
        self._lines.add(line)
        return line

    def _reclaim_connection(self, line: TritonConnection) -> None:
        # The last one is the next to be used: one that shares memory, if there is one.
        self._idle.insert(len(self._idle) if line in self._regions else 0, line)

    async def _region(self, line: TritonConnection, size: int) -> SharedMemoryRegion | None:
        """Return memory that is shared over a line and holds so many bytes; None where there is none to be had."""
        known = self._regions.get(line)
        if known is not None and known.size >= size:
            return known
        if not self._shares or (known is None and len(self._regions) >= _REGIONS):
            return None
        if known is not None:
            await self._tell(line, known, "unregister", {})
            del self._regions[line]
        try:
            region = SharedMemoryRegion(size)
        except OSError as error:
            self._disable_shared_memory(str(error))
            return None
        return await self._shared(line, region)

    async def _shared(self, line: TritonConnection, region: SharedMemoryRegion) -> SharedMemoryRegion | None:
        said = {"key": f"/{region.name}", "offset": 0, "byte_size": region.size}
        self._regions[line] = region  # counts from now on
        told = False
        try:
            reply = await self._tell(line, region, "register", said)
            told = reply.status == 200
        finally:
            region.unlink()
            if not told:
                self._regions.pop(line, None)
        if told:
            return region
        self._disable_shared_memory(_error_in(reply))
        return None

    def _disable_shared_memory(self, why: str) -> None:
        _log.info("tensors travel in the requests, as Triton shares no memory with this process: %s", why)
        self._shares = False

    async def _tell(
        self, line: TritonConnection, region: SharedMemoryRegion, what: str, said: Mapping[str, Any]
    ) -> TritonResponse:
        body = orjson.dumps(said)
        head = _head("POST", f"/v2/systemsharedmemory/region/{region.name}/{what}", len(body))
        return await line.ask(head, [body])

    async def _asked(self, line: TritonConnection, tensors: Mapping[str, NDArray[Any]]) -> TritonResponse:
        region = await self._region(line, sum(values.nbytes for values in tensors.values()))
        if region is None:
            return await self._ask_sending(line, tensors)
        text = _said(tensors, region.write(tensors))
        reply = await line.ask(_head("POST", f"{self._model}/infer", len(text)), [text])
        if reply.status == 200 or _LOST_REGION not in reply.body:
            return reply
        # Somebody made Triton forget the region; the next request over this line registers another.
        _log.warning("Triton has forgotten memory that was shared with it: %s", _error_in(reply))
        del self._regions[line]
        return await self._ask_sending(line, tensors)

    async def _ask_sending(self, line: TritonConnection, tensors: Mapping[str, NDArray[Any]]) -> TritonResponse:
        text = _said(tensors, {name: {"binary_data_size": values.nbytes} for name, values in tensors.items()})
        parts = [values.reshape(-1).view(np.uint8).data for values in tensors.values()]
        length = len(text) + sum(values.nbytes for values in tensors.values())
        return await line.ask(_head("POST", f"{self._model}/infer", length, len(text)), [text, *parts])


def _error_in(reply: TritonResponse) -> str:
    """Return the protocol's error message, or the status where there is none."""
    try:
        return str(orjson.loads(reply.body)["error"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"HTTP {reply.status}"


def _head(method: str, path: str, length: int, json_length: int | None = None) -> bytes:
    more = "" if json_length is None else f"Inference-Header-Content-Length: {json_length}\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: triton\r\n{more}Content-Length: {length}\r\n\r\n".encode()


def _said(tensors: Mapping[str, NDArray[Any]], where: Mapping[str, Any]) -> bytes:
    inputs = [
        {"name": name, "datatype": _DATATYPES[values.dtype.str[1:]], "shape": values.shape, "parameters": where[name]}
        for name, values in tensors.items()
    ]
    return orjson.dumps({"inputs": inputs, "outputs": _OUTPUTS})


_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - where Linux keeps such memory
_SMALLEST: Final = 1024 * 1024


class SharedMemoryRegion:
    """A piece of shared memory, named so that nobody else's is meant."""

    def __init__(self, size: int) -> None:
        """Make it; its file is there until `unlink`.

        Args:
            size: Bytes that must fit.

        Raises:
            OSError: There is no such memory here, or not enough of it.
        """
        self.size = max(_SMALLEST, 1 << (size - 1).bit_length())
        self.name = f"shortlist-tensors-{os.getpid()}-{secrets.token_hex(8)}"
        self._path = _FOLDER / self.name
        with self._path.open("x+b") as file:
            try:
                self._path.chmod(0o600)
                os.posix_fallocate(file.fileno(), 0, self.size)  # or a write beyond what there is kills the process
                self._memory = mmap.mmap(file.fileno(), self.size)
            except BaseException:
                self.unlink()
                raise

    def unlink(self) -> None:
        """Remove the file: the memory stays with who has it open, and is nobody's when they have ended."""
        self._path.unlink(missing_ok=True)

    def write(self, tensors: Mapping[str, NDArray[Any]]) -> dict[str, dict[str, Any]]:
        """Write tensors one after another and return, by name, the parameters that tell Triton where each is."""
        told, place = {}, 0
        for name, values in tensors.items():
            np.frombuffer(self._memory, values.dtype, values.size, place).reshape(values.shape)[...] = values
            told[name] = {
                "shared_memory_region": self.name,
                "shared_memory_offset": place,
                "shared_memory_byte_size": values.nbytes,
            }
            place += values.nbytes
        return told
