from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shortlist.serving.server.scoring import triton_client as region
from shortlist.serving.server.scoring.triton_client import SharedMemoryRegion, TritonClient, TritonError
from shortlist.serving.server.scoring.triton_connection import TritonConnection

MODEL, VERSION = "shop", 3
SHARED = "/v2/systemsharedmemory/status"


def tensors(*weights: float) -> dict[str, np.ndarray]:
    """Items' weights without a user; the score is the weight."""
    return {"numbers": np.array([[weight, 0.0, 1.0] for weight in weights])}


def shared_with(triton: Any) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"http://{triton.http}{SHARED}") as answer:
        return list(json.loads(answer.read()))


def left_behind() -> list[Path]:
    return list(region._FOLDER.glob("shortlist-tensors-*"))


def with_client(triton: Any, ask: Callable[[TritonClient], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        client = TritonClient(triton.http, MODEL, VERSION)
        try:
            return await ask(client)
        finally:
            client.close()

    return asyncio.run(run())


def test_tensors_are_shared_with_a_triton_on_this_machine_and_no_file_stays(triton: Any) -> None:
    old_count = len(shared_with(triton))

    async def ask(client: TritonClient) -> list[list[float]]:
        return [(await client.scores(tensors(*weights))).tolist() for weights in ((1, 2), (3,), (4, 5, 6))]

    assert with_client(triton, ask) == [[1, 2], [3], [4, 5, 6]]
    assert len(shared_with(triton)) == old_count + 1  # one connection, one region, used again
    assert not left_behind()


def test_a_larger_request_replaces_the_region_by_a_larger_region(triton: Any) -> None:
    old_names = {region["name"] for region in shared_with(triton)}
    rows = 100_000  # 2.4 MB

    async def ask(client: TritonClient) -> int:
        await client.scores(tensors(1))
        large = {"numbers": np.ones((16, 3))}
        assert (await client.scores(large)).tolist() == [1001.0] * 16
        line = next(iter(client._lines))
        grown = await client._region(line, rows * 24)
        assert grown is not None
        assert (await client.scores(tensors(7))).tolist() == [7]
        return grown.size

    size = with_client(triton, ask)
    new = [region for region in shared_with(triton) if region["name"] not in old_names]
    assert [region["byte_size"] for region in new] == [size]
    assert size >= rows * 24


def test_many_at_once_get_their_own_scores_and_few_of_them_share_memory(triton: Any) -> None:
    old_count = len(shared_with(triton))

    async def ask(client: TritonClient) -> list[Any]:
        return await asyncio.gather(*(client.scores(tensors(number, number + 0.5)) for number in range(150)))

    answers = with_client(triton, ask)
    assert [answer.tolist() for answer in answers] == [[number, number + 0.5] for number in range(150)]
    assert 1 <= len(shared_with(triton)) - old_count <= 8
    assert not left_behind()


def test_where_memory_cannot_be_shared_tensors_travel_in_the_request(
    triton: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old_count = len(shared_with(triton))

    async def ask(client: TritonClient) -> list[list[float]]:
        return [(await client.scores(tensors(*weights))).tolist() for weights in ((1, 2), (3,))]

    monkeypatch.setattr(region, "_FOLDER", tmp_path)  # Triton looks elsewhere and refuses, as on another machine
    assert with_client(triton, ask) == [[1, 2], [3]]
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(region, "_FOLDER", tmp_path / "nowhere")
    assert with_client(triton, ask) == [[1, 2], [3]]
    assert len(shared_with(triton)) == old_count


def test_a_connection_of_a_cancelled_request_is_free_only_after_the_response() -> None:
    answers = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await answers.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def ask() -> tuple[list[Any], list[Any], Any]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            free: list[Any] = []
            line = await TritonConnection.connect("127.0.0.1", server.sockets[0].getsockname()[1], free.append)
            cancelled_task = asyncio.create_task(line.ask(b"GET / HTTP/1.1\r\n\r\n"))
            await asyncio.sleep(0)
            cancelled_task.cancel()
            await asyncio.wait([cancelled_task])
            line.give_back()
            early = list(free)  # whoever answers may still be reading what was shared
            answers.set()
            while line.is_open:
                await asyncio.sleep(0.01)
            return early, free, line

    early, late, line = asyncio.run(ask())
    assert (early, late) == ([], [line])


def test_a_refusal_contains_the_reason(triton: Any) -> None:
    with pytest.raises(TritonError, match="unexpected shape for input 'numbers'") as refused:
        with_client(triton, lambda client: client.scores({"numbers": np.zeros((2, 1))}))
    assert refused.value.status == 400


def test_a_region_that_does_not_fit_is_refused_and_removed() -> None:
    with pytest.raises(OSError):
        SharedMemoryRegion(1 << 50)
    assert not left_behind()


def test_chunked_responses_are_joined_and_a_broken_connection_is_an_error() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in (
            b"HTTP/1.1 200 OK\r\nContent-Le",
            b"ngth: 4\r\nInference-Header-",
            b"Content-Length: 1\r\n\r\na",
            b"bcd",
        ):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
        writer.close()

    async def ask() -> tuple[int, bytes, int | None, list[Any]]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            free: list[Any] = []
            line = await TritonConnection.connect("127.0.0.1", server.sockets[0].getsockname()[1], free.append)
            reply = await line.ask(b"GET / HTTP/1.1\r\n\r\n")
            with pytest.raises(ConnectionResetError):
                await line.ask(b"GET / HTTP/1.1\r\n\r\n")
            assert not line.is_open
            with pytest.raises(ConnectionResetError, match="closed"):
                await line.ask(b"GET / HTTP/1.1\r\n\r\n")
            return reply.status, bytes(reply.body), reply.header_length, free

    assert asyncio.run(ask()) == (200, b"abcd", 1, [])


def test_unregistered_shared_memory_is_reregistered(triton: Any) -> None:
    async def ask(client: TritonClient) -> list[list[float]]:
        scores = [(await client.scores(tensors(1))).tolist()]
        (region,) = client._regions.values()
        forget = f"http://{triton.http}/v2/systemsharedmemory/region/{region.name}/unregister"
        with urllib.request.urlopen(urllib.request.Request(forget, b"{}")) as answer:
            assert answer.status == 200
        scores += [(await client.scores(tensors(weight))).tolist() for weight in (2, 3)]
        (new_region,) = client._regions.values()
        assert new_region.name != region.name
        return scores

    assert with_client(triton, ask) == [[1], [2], [3]]
