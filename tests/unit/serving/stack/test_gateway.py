import asyncio
import itertools
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import psutil
import pytest
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as services

from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.evidence_access import AccessLog, rollout_requests
from shortlist.rollout.local.envoy import ENVOYS
from shortlist.rollout.local.stack import Stack
from shortlist.serving.paths import ServingPaths
from shortlist.serving.processes.ports import HOST
from shortlist.spec.serving import Serving

INFER = "/v2/models/demo/infer"
HALF = Route(stable=1, canary=2, percent=50, rollout="one", step=2)


@pytest.fixture(scope="module")
def stack(
    tmp_path_factory: pytest.TempPathFactory, bring_up: Callable[..., Stack], deployment: Callable[[int], Deployment]
) -> Stack:
    """Versions 1 and 2 of a tiny model, with stand-ins for their servers."""
    stack = bring_up(ServingPaths.for_spec(tmp_path_factory.mktemp("runs"), "demo"))
    for version in (1, 2):
        stack.deploy(deployment(version), Serving())
    for version in (1, 2):
        stack.wait_ready(version, 60)
    stack.route(Route(stable=1))
    return stack


def tracks(stack: Stack, users: list[str]) -> dict[str, str]:
    """Return the track of every user, by asking once for each."""

    async def all_of_them() -> dict[str, str]:
        found, gate = {}, asyncio.Semaphore(32)

        async def one(session: aiohttp.ClientSession, user: str) -> None:
            async with gate, session.post(stack.url + INFER, data=b"{}", headers={"x-shortlist-user": user}) as answer:
                assert answer.status == 200
                found[user] = answer.headers["x-shortlist-track"]

        connector = aiohttp.TCPConnector(limit=32)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
            for user in users:
                group.create_task(one(session, user))
        return found

    return asyncio.run(all_of_them())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", INFER),
        ("POST", "/v2/models/demo/versions/1/infer"),
        ("GET", "/v2"),
        ("GET", "/v2/health/live"),
        ("GET", "/v2/health/ready"),
        ("GET", "/v2/models/demo"),
        ("GET", "/v2/models/demo/ready"),
    ],
)
def test_inference_and_health_are_reachable_over_http(
    stack: Stack, ask: Callable[..., Any], method: str, path: str
) -> None:
    status, headers, body = ask(stack, method, path, b"{}" if method == "POST" else None)
    assert (status, headers["x-shortlist-version"], body["version"]) == (200, "1", 1)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/models/other/infer"),
        ("POST", "/v2/models/demo/versions/7/infer"),
        ("GET", INFER),
        ("DELETE", "/v2/models/demo"),
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/demo/unload"),
        ("GET", "/v2/models/demo/config"),
        ("GET", "/v2/models/stats"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/trace/setting"),
        ("GET", "/metrics"),
        ("GET", "/"),
        ("GET", "/config_dump"),
        ("GET", "/v2/health/../repository/index"),
    ],
)
def test_everything_else_is_not_found_over_http(stack: Stack, ask: Callable[..., Any], method: str, path: str) -> None:
    status, _, body = ask(stack, method, path, b"{}" if method == "POST" else None)
    assert status == 404
    assert "only inference and health" in body["error"]


def test_only_inference_and_health_are_reachable_over_grpc(stack: Stack) -> None:
    stack.route(Route(stable=2))
    with grpc.insecure_channel(f"127.0.0.1:{stack.port}") as channel:
        stub = services.GRPCInferenceServiceStub(channel)
        assert stub.ServerReady(messages.ServerReadyRequest(), timeout=10).ready
        forged = (("x-shortlist-track", "canary"), ("x-shortlist-user", "u"))
        answer = stub.ModelInfer(messages.ModelInferRequest(model_name="demo"), timeout=10, metadata=forged)
        assert answer.model_version == "2"
        assert answer.parameters["x-shortlist-track"].string_param == "stable"
        for closed, request in (
            (stub.RepositoryIndex, messages.RepositoryIndexRequest()),
            (stub.RepositoryModelUnload, messages.RepositoryModelUnloadRequest(model_name="demo")),
            (stub.SystemSharedMemoryStatus, messages.SystemSharedMemoryStatusRequest()),
            (stub.ModelConfig, messages.ModelConfigRequest(name="demo")),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                closed(request, timeout=10)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert refused.value.details().startswith("not found: only inference and health")


def test_a_clients_forged_headers_are_replaced(stack: Stack, ask: Callable[..., Any]) -> None:
    stack.route(HALF)
    status, headers, body = ask(
        stack, "POST", INFER, b"{}",
        x_shortlist_user="anna", x_shortlist_track="admin", x_shortlist_version="9", x_shortlist_rollout="none",
        x_shortlist_step="77", x_envoy_max_retries="100", x_envoy_original_path="/metrics", x_request_id="my own id",
    )  # fmt: skip
    seen = body["headers"]
    assert status == 200
    assert seen["x-shortlist-track"] in {"stable", "canary"}
    assert seen["x-shortlist-version"] == {"stable": "1", "canary": "2"}[seen["x-shortlist-track"]]
    assert (seen["x-shortlist-rollout"], seen["x-shortlist-step"], seen["x-shortlist-user"]) == ("one", "2", "anna")
    assert not {"x-envoy-max-retries", "x-envoy-original-path"} & set(seen)
    assert seen["x-request-id"] == headers["x-request-id"] == "my own id"
    stack.route(Route(stable=1))
    _, _, body = ask(stack, "POST", INFER, b"{}", x_shortlist_rollout="forged", x_shortlist_step="1")
    assert not {"x-shortlist-rollout", "x-shortlist-step"} & set(body["headers"])


def test_a_quarter_of_ten_thousand_users_is_a_quarter(stack: Stack) -> None:
    stack.route(HALF.model_copy(update={"percent": 25}))
    share = Counter(tracks(stack, [f"user {number}" for number in range(10_000)]).values())["canary"] / 10_000
    assert abs(share - 0.25) < 0.01


def test_no_user_leaves_the_canary_while_its_share_grows_and_another_rollout_takes_others(stack: Stack) -> None:
    users = [str(number) for number in range(1_000)]
    before: set[str] = set()
    for percent in (0, 5, 50, 100):
        stack.route(HALF.model_copy(update={"percent": percent}))
        now = {user for user, track in tracks(stack, users).items() if track == "canary"}
        assert before <= now
        assert abs(len(now) / 1_000 - percent / 100) < 0.04  # five standard deviations of a thousand users
        if percent == 50:
            half, again = now, tracks(stack, users)
            assert now == {user for user, track in again.items() if track == "canary"}
        before = now
    stack.route(HALF.model_copy(update={"rollout": "two"}))
    other = {user for user, track in tracks(stack, users).items() if track == "canary"}
    assert abs(len(half & other) / len(half) - 0.5) < 0.1  # as chance has it


def test_an_answered_error_is_not_asked_again(stack: Stack, ask: Callable[..., Any]) -> None:
    stack.route(Route(stable=1))
    status, _, body = ask(stack, "POST", INFER, b"answer 503, please")
    assert (status, body["seen"]) == (503, 1)


def test_ten_thousand_candidates_pass(stack: Stack, ask: Callable[..., Any]) -> None:
    stack.route(Route(stable=1))
    body = json.dumps({"inputs": [{"name": f"c{column}", "data": list(range(10_000))} for column in range(100)]})
    status, _, answer = ask(stack, "POST", INFER, body.encode())
    assert (status, answer["bytes"]) == (200, len(body))


def test_the_access_log_has_a_line_with_every_field_for_every_request(
    stack: Stack, ask: Callable[..., Any], until: Callable[..., None]
) -> None:
    def lines() -> dict[str, dict[str, Any]]:
        logs = [stack.paths.logs / f"{name}.access.jsonl" for name in ENVOYS]
        found = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
        return {line["id"]: line for line in found}

    stack.route(HALF)
    _, headers, _ = ask(stack, "POST", INFER, b"{}", x_shortlist_user="anna", x_request_id="logged")
    ask(stack, "GET", "/metrics", x_shortlist_track="forged", x_request_id="refused")
    with grpc.insecure_channel(f"127.0.0.1:{stack.port}") as channel:
        stub = services.GRPCInferenceServiceStub(channel)
        stub.ModelInfer(messages.ModelInferRequest(), timeout=10, metadata=(("x-request-id", "by grpc"),))
    until(lambda: {"logged", "refused", "by grpc"} <= set(lines()))
    line = lines()["logged"]
    assert line.pop("us") > 0
    assert line.pop("time").endswith("Z")
    assert line == {
        "id": "logged", "user": "anna", "track": headers["x-shortlist-track"], "rollout": "one", "step": "2",
        "version": headers["x-shortlist-version"], "path": INFER, "protocol": "HTTP/1.1", "status": 200,
        "grpc": None, "flags": "-", "details": "via_upstream",
    }  # fmt: skip
    refused = lines()["refused"]
    assert (refused["track"], refused["user"], refused["status"]) == (None, None, 404)
    by_grpc = lines()["by grpc"]
    assert (by_grpc["grpc"], by_grpc["status"], by_grpc["protocol"], by_grpc["user"]) == (0, 200, "HTTP/2", None)


def test_a_client_that_goes_away_is_told_apart_from_a_server_that_fails(
    stack: Stack, ask: Callable[..., Any], until: Callable[..., None]
) -> None:
    stack.route(HALF)
    logs = [AccessLog(stack.paths.logs / f"{name}.access.jsonl") for name in ENVOYS]
    seen: dict[str, dict[str, Any]] = {}
    waits = itertools.cycle((0.05, 0.1, 0.15))  # the answer takes 0.2 s

    def both() -> bool:
        head, body = f"POST {INFER} HTTP/1.1\r\nhost: demo\r\nx-request-id: gone\r\n", "take your time"
        with socket.create_connection((HOST, stack.port), timeout=10) as client:
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
            time.sleep(next(waits))  # one that goes away before Envoy has chosen a track is of no rollout
        ask(stack, "POST", INFER, b"answer 503, please", x_request_id="failed")
        for log in logs:
            for lines in log.read():
                seen.update({row["id"]: row for row in rollout_requests(lines, "one").to_dicts()})
        return {"gone", "failed"} <= set(seen)

    until(both)
    gone, failed = seen["gone"], seen["failed"]
    assert (gone["disconnected"], gone["failed"], gone["us"]) == (True, False, None)
    assert (failed["disconnected"], failed["failed"]) == (False, True)


def test_a_killed_envoy_costs_nothing_and_comes_back(
    stack: Stack, ask: Callable[..., Any], until: Callable[..., None]
) -> None:
    stack.route(Route(stable=1))
    victim = stack.status().envoys[0]
    os.kill(victim.pid, 9)
    until(lambda: not Path(f"/proc/{victim.pid}").exists())  # for some milliseconds it still holds its sockets
    assert [ask(stack, "POST", INFER, b"{}")[0] for _ in range(20)] == [200] * 20
    stack.route(Route(stable=2))  # one Envoy is enough to change the route
    until(lambda: (now := stack.status().envoys[0]).ready and now.pid != victim.pid)
    assert {ask(stack, "POST", INFER, b"{}")[2]["version"] for _ in range(40)} == {2}
    assert "envoy-a had to be started again 1 times" in " ".join(stack.status().problems)


@pytest.mark.long
def test_envoys_whose_settings_changed_are_restarted_one_after_another_and_no_client_notices(
    stack: Stack, bring_up: Callable[..., Stack]
) -> None:
    """Clients keep a connection, or speak gRPC; a request takes 0.2 s."""
    stack.route(Route(stable=1))
    before, after = [each.pid for each in stack.status().envoys], []
    slow = b"take your time"
    found: Counter[Any] = Counter()

    def change() -> None:
        for seconds in (61, 62):
            changed = bring_up(stack.paths, Serving(limits={"idle_seconds": seconds}))
            after.append([each.pid for each in changed.status().envoys])

    async def over_http(done: asyncio.Event) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
            while not done.is_set():
                async with session.post(stack.url + INFER, data=slow) as answer:
                    found[answer.status] += 1

    async def over_grpc(done: asyncio.Event) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{stack.port}") as channel:
            stub = services.GRPCInferenceServiceStub(channel)
            while not done.is_set():
                answer = await stub.ModelInfer(messages.ModelInferRequest(model_name="demo"), timeout=10)
                found[f"gRPC, version {answer.model_version}"] += 1

    async def all_of_them() -> None:
        done = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for client in (over_http, over_grpc):
                for _ in range(4):
                    group.create_task(client(done))
            await asyncio.to_thread(change)
            done.set()

    asyncio.run(all_of_them())
    assert not set(before) & set(after[0]) and not set(after[0]) & set(after[1])
    assert set(found) == {200, "gRPC, version 1"}
    assert min(found.values()) > 50


def test_a_request_waits_for_a_killed_server_and_both_processes_come_back(
    stack: Stack, ask: Callable[..., Any], until: Callable[..., None]
) -> None:
    stack.route(Route(stable=1))
    before = stack.health(1)
    for process in (before.server, before.triton):
        os.kill(process.pid, 9)
    until(lambda: not stack.health(1).server.ready)
    status, _, body = ask(stack, "POST", INFER, b"{}")
    assert (status, body["version"]) == (200, 1)
    after = stack.wait_ready(1, 30)
    assert after.restarts == before.restarts + 2
    assert {after.server.pid, after.triton.pid}.isdisjoint({before.server.pid, before.triton.pid})
    stack.route(Route(stable=1))


@pytest.mark.long
def test_a_triton_whose_backend_died_is_started_again(stack: Stack, until: Callable[..., None]) -> None:
    before = stack.health(2).triton
    backend = next(each for each in psutil.Process(before.pid).children() if each.name().startswith("triton_python"))
    backend.kill()
    until(lambda: (now := stack.health(2).triton).ready and now.restarts == before.restarts + 1)
    assert stack.health(2).triton.pid != before.pid


@pytest.mark.long
def test_a_route_that_only_was_written_down_is_told_and_put_right(
    stack: Stack, ask: Callable[..., Any], bring_up: Callable[..., Stack]
) -> None:
    stack.route(Route(stable=1))
    killed_right_after_writing = stack.record.model_copy(update={"route": Route(stable=2)})
    killed_right_after_writing.write(stack.paths.record)
    problems = stack.status().problems
    assert "envoy-a sends users elsewhere than is written down: serve again." in problems
    bring_up(stack.paths)
    assert ask(stack, "POST", INFER, b"{}")[2]["version"] == 2
    assert "envoy-a sends users elsewhere than is written down: serve again." not in stack.status().problems
