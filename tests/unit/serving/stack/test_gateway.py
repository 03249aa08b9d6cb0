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
from shortlist.rollout.evidence.access_log import AccessLog, AccessLogFolder, rollout_requests
from shortlist.rollout.local.envoy.bootstrap import ENVOYS
from shortlist.rollout.local.stack import Stack
from shortlist.serving.log.access_log_rotation import rotate
from shortlist.serving.paths import ServingPaths
from shortlist.serving.processes.ports import HOST
from shortlist.serving.server.requests.senders import Senders
from shortlist.spec.serving import Events, Serving

INFER = "/v2/models/demo/infer"
HALF = Route(stable=1, canary=2, percent=50, rollout="one", step=2)


@pytest.fixture(scope="module")
def stack(
    tmp_path_factory: pytest.TempPathFactory, bring_up: Callable[..., Stack], deployment: Callable[[int], Deployment]
) -> Stack:
    """Versions 1 and 2 of a tiny model, with stub servers."""
    stack = bring_up(ServingPaths.for_spec(tmp_path_factory.mktemp("runs"), "demo"))
    for version in (1, 2):
        stack.deploy(deployment(version), Serving())
    for version in (1, 2):
        stack.wait_ready(version, 60)
    stack.route(Route(stable=1))
    return stack


def tracks(stack: Stack, users: list[str]) -> dict[str, str]:
    """Return the track of every user, with one request each."""

    async def all_tracks() -> dict[str, str]:
        track_by_user, gate = {}, asyncio.Semaphore(32)
        token = stack.backend_endpoint().token

        async def track_of(session: aiohttp.ClientSession, user: str) -> None:
            headers = {"x-shortlist-user": user, "authorization": f"Bearer {token}"}
            async with gate, session.post(stack.url + INFER, data=b"{}", headers=headers) as answer:
                assert answer.status == 200
                track_by_user[user] = answer.headers["x-shortlist-track"]

        connector = aiohttp.TCPConnector(limit=32)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
            for user in users:
                group.create_task(track_of(session, user))
        return track_by_user

    return asyncio.run(all_tracks())


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
    assert (status, body["version"]) == (200, 1)
    # The answer to a request that was split between the tracks does not tell a client its track.
    assert headers.get("x-shortlist-version") == (None if path == INFER else "1")


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
    received_headers = body["headers"]
    assert status == 200
    assert received_headers["x-shortlist-track"] in {"stable", "canary"}
    assert (
        received_headers["x-shortlist-version"] == {"stable": "1", "canary": "2"}[received_headers["x-shortlist-track"]]
    )
    assert (
        received_headers["x-shortlist-rollout"],
        received_headers["x-shortlist-step"],
        received_headers["x-shortlist-user"],
    ) == ("one", "2", "anna")
    assert not {"x-envoy-max-retries", "x-envoy-original-path"} & set(received_headers)
    assert received_headers["x-request-id"] == headers["x-request-id"] == "my own id"
    stack.route(Route(stable=1))
    _, _, body = ask(stack, "POST", INFER, b"{}", x_shortlist_rollout="forged", x_shortlist_step="1")
    assert not {"x-shortlist-rollout", "x-shortlist-step"} & set(body["headers"])


@pytest.mark.parametrize("path", [INFER, "/v1/rank"])
def test_a_client_of_this_machine_is_the_same_sender_in_both_logs(
    stack: Stack, ask: Callable[..., Any], until: Callable[..., None], path: str
) -> None:
    stack.route(HALF)
    request = f"from here to {path}"
    _, _, body = ask(
        stack, "POST", path, b"{}", x_request_id=request, x_forwarded_for="203.0.113.9", x_shortlist_user="u"
    )
    sender = Senders(Events(), HOST).name(body["headers"])  # as the server writes it into the prediction log
    assert sender == HOST and Serving(backends=(HOST,)).vouches_for_users(sender)
    logs = AccessLogFolder(stack.paths.logs)
    access: list[str] = []

    def is_logged() -> bool:
        access.extend(name for lines in logs.read() for name in lines.filter(id=request)["sender"])
        return bool(access)

    until(is_logged)
    assert access == [sender]


@pytest.mark.parametrize("version", ["", "1"])
def test_a_client_of_this_machine_is_the_same_sender_over_grpc(stack: Stack, version: str) -> None:
    stack.route(HALF)
    with grpc.insecure_channel(f"127.0.0.1:{stack.port}") as channel:
        request = messages.ModelInferRequest(model_name="demo", model_version=version)
        answer = services.GRPCInferenceServiceStub(channel).ModelInfer(
            request, timeout=10, metadata=(("x-forwarded-for", "203.0.113.9"),)
        )
    headers = {name: value.string_param for name, value in answer.parameters.items()}
    assert Senders(Events(), HOST).name(headers) == HOST


def test_a_request_of_a_named_version_has_the_senders_address(stack: Stack, ask: Callable[..., Any]) -> None:
    _, _, body = ask(stack, "POST", "/v2/models/demo/versions/1/infer", b"{}")
    assert Senders(Events(), HOST).name(body["headers"]) == HOST


def test_a_quarter_of_ten_thousand_users_is_a_quarter(stack: Stack) -> None:
    stack.route(HALF.model_copy(update={"percent": 25}))
    share = Counter(tracks(stack, [f"user {number}" for number in range(10_000)]).values())["canary"] / 10_000
    assert abs(share - 0.25) < 0.01


def test_users_stay_on_the_canary_while_it_grows_and_another_rollout_draws_other_users(stack: Stack) -> None:
    users = [str(number) for number in range(1_000)]
    canary_users: set[str] = set()
    for percent in (0, 5, 50, 100):
        stack.route(HALF.model_copy(update={"percent": percent}))
        now = {user for user, track in tracks(stack, users).items() if track == "canary"}
        assert canary_users <= now
        assert abs(len(now) / 1_000 - percent / 100) < 0.04  # five standard deviations of a thousand users
        if percent == 50:
            half, second_half = now, tracks(stack, users)
            assert now == {user for user, track in second_half.items() if track == "canary"}
        canary_users = now
    stack.route(HALF.model_copy(update={"salt": "another secret"}))
    other_users = {user for user, track in tracks(stack, users).items() if track == "canary"}
    assert abs(len(half & other_users) / len(half) - 0.5) < 0.1  # as chance has it


def test_an_error_response_is_not_retried(stack: Stack, ask: Callable[..., Any]) -> None:
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
        log_lines = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
        return {line["id"]: line for line in log_lines}

    stack.route(HALF)
    bearer = f"Bearer {stack.backend_endpoint().token}"
    _, headers, _ = ask(
        stack, "POST", INFER, b"{}", x_shortlist_user="anna", x_request_id="logged", authorization=bearer
    )
    ask(stack, "GET", "/metrics", x_shortlist_track="forged", x_request_id="refused")
    with grpc.insecure_channel(f"127.0.0.1:{stack.port}") as channel:
        stub = services.GRPCInferenceServiceStub(channel)
        stub.ModelInfer(messages.ModelInferRequest(), timeout=10, metadata=(("x-request-id", "by grpc"),))
    until(lambda: {"logged", "refused", "by grpc"} <= set(lines()))
    line = lines()["logged"]
    assert line.pop("us") > 0
    assert line.pop("time").endswith("Z")
    assert line == {
        "id": "logged", "user": "anna", "sender": "backend", "track": headers["x-shortlist-track"], "rollout": "one",
        "step": "2", "version": headers["x-shortlist-version"], "path": INFER, "protocol": "HTTP/1.1", "status": 200,
        "grpc": None, "flags": "-", "details": "via_upstream",
    }  # fmt: skip
    refused = lines()["refused"]
    assert (refused["track"], refused["user"], refused["status"]) == (None, None, 404)
    by_grpc = lines()["by grpc"]
    assert (by_grpc["grpc"], by_grpc["status"], by_grpc["protocol"], by_grpc["user"]) == (0, 200, "HTTP/2", None)
    assert by_grpc["sender"] == "127.0.0.1"


def test_an_access_log_is_rotated_while_envoy_writes_lines(
    stack: Stack, ask: Callable[..., Any], until: Callable[..., None]
) -> None:
    logs = {stack.paths.logs / f"{name}.access.jsonl": stack.record.sockets / f"{name}.sock" for name in ENVOYS}
    stack.route(HALF)
    reader, ids = AccessLogFolder(stack.paths.logs), []

    def read_ids(count: int) -> bool:
        ids.extend(name for lines in reader.read() for name in lines["id"] if name.startswith("rotated-"))
        return len(ids) == count

    for round_number in range(3):
        for number in range(20):
            ask(stack, "POST", INFER, b"{}", x_request_id=f"rotated-{round_number}-{number}")
        if round_number:
            until(lambda: read_ids(20 * (round_number + 1)))  # noqa: B023
        assert [rotate(log, admin) for log, admin in logs.items()] == [False, False]  # they are short
        assert [rotate(log, admin, max_bytes=0) for log, admin in logs.items()] == [True, True]
    until(lambda: read_ids(60))
    assert len(set(ids)) == 60
    for log in logs:
        log.with_name(f"{log.name}.1").unlink()


def test_a_disconnected_client_is_distinguished_from_a_failed_server(
    stack: Stack, ask: Callable[..., Any], until: Callable[..., None]
) -> None:
    stack.route(HALF)
    logs = [AccessLog(stack.paths.logs / f"{name}.access.jsonl") for name in ENVOYS]
    lines_by_case: dict[str, dict[str, Any]] = {}
    waits = itertools.cycle((0.05, 0.1, 0.15))  # the answer takes 0.2 s

    def both_requests() -> bool:
        head, body = f"POST {INFER} HTTP/1.1\r\nhost: demo\r\nx-request-id: gone\r\n", "take your time"
        with socket.create_connection((HOST, stack.port), timeout=10) as client:
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
            time.sleep(next(waits))  # one that goes away before Envoy has chosen a track is of no rollout
        ask(stack, "POST", INFER, b"answer 503, please", x_request_id="failed")
        for log in logs:
            for lines in log.read():
                lines_by_case.update({row["id"]: row for row in rollout_requests(lines, "one").to_dicts()})
        return {"gone", "failed"} <= set(lines_by_case)

    until(both_requests)
    disconnected, failed = lines_by_case["gone"], lines_by_case["failed"]
    assert (disconnected["disconnected"], disconnected["failed"], disconnected["us"]) == (True, False, None)
    assert (failed["disconnected"], failed["failed"]) == (False, True)


def test_a_killed_envoy_loses_no_request_and_is_restarted(
    stack: Stack, ask: Callable[..., Any], until: Callable[..., None]
) -> None:
    stack.route(Route(stable=1))
    victim = stack.status().gateway[0]
    os.kill(victim.pid, 9)
    until(lambda: not Path(f"/proc/{victim.pid}").exists())  # for some milliseconds it still holds its sockets
    assert [ask(stack, "POST", INFER, b"{}")[0] for _ in range(20)] == [200] * 20
    stack.route(Route(stable=2))  # one Envoy is enough to change the route
    until(lambda: (now := stack.status().gateway[0]).ready and now.pid != victim.pid)
    assert {ask(stack, "POST", INFER, b"{}")[2]["version"] for _ in range(40)} == {2}
    assert "envoy-a had to be started again 1 times" in " ".join(stack.status().problems)


@pytest.mark.long
def test_envoys_with_changed_settings_are_restarted_one_at_a_time_without_failures(
    stack: Stack, bring_up: Callable[..., Stack]
) -> None:
    """Clients keep a connection, or use gRPC; a request takes 0.2 s."""
    stack.route(Route(stable=1))
    old_pids, new_pids = [process.pid for process in stack.status().gateway], []
    slow = b"take your time"
    status_counts: Counter[Any] = Counter()

    def change() -> None:
        for seconds in (61, 62):
            changed = bring_up(stack.paths, Serving(limits={"idle_seconds": seconds}))
            new_pids.append([process.pid for process in changed.status().gateway])

    async def over_http(finished: asyncio.Event) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
            while not finished.is_set():
                async with session.post(stack.url + INFER, data=slow) as answer:
                    status_counts[answer.status] += 1

    async def over_grpc(finished: asyncio.Event) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{stack.port}") as channel:
            stub = services.GRPCInferenceServiceStub(channel)
            while not finished.is_set():
                answer = await stub.ModelInfer(messages.ModelInferRequest(model_name="demo"), timeout=10)
                status_counts[f"gRPC, version {answer.model_version}"] += 1

    async def run_all() -> None:
        finished = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for client in (over_http, over_grpc):
                for _ in range(4):
                    group.create_task(client(finished))
            await asyncio.to_thread(change)
            finished.set()

    asyncio.run(run_all())
    assert not set(old_pids) & set(new_pids[0]) and not set(new_pids[0]) & set(new_pids[1])
    assert set(status_counts) == {200, "gRPC, version 1"}
    assert min(status_counts.values()) > 50


def test_a_request_waits_for_a_killed_server_and_both_processes_restart(
    stack: Stack, ask: Callable[..., Any], until: Callable[..., None]
) -> None:
    stack.route(Route(stable=1))
    old_health = stack.health(1)
    for process in (old_health.server, old_health.triton):
        os.kill(process.pid, 9)
    until(lambda: not stack.health(1).server.ready)
    status, _, body = ask(stack, "POST", INFER, b"{}")
    assert (status, body["version"]) == (200, 1)
    new_health = stack.wait_ready(1, 30)
    assert new_health.restarts == old_health.restarts + 2
    assert {new_health.server.pid, new_health.triton.pid}.isdisjoint({old_health.server.pid, old_health.triton.pid})
    stack.route(Route(stable=1))


@pytest.mark.long
def test_a_triton_whose_backend_died_is_restarted(stack: Stack, until: Callable[..., None]) -> None:
    old_triton = stack.health(2).triton
    backend = next(
        process for process in psutil.Process(old_triton.pid).children() if process.name().startswith("triton_python")
    )
    backend.kill()
    until(lambda: (now := stack.health(2).triton).ready and now.restarts == old_triton.restarts + 1)
    assert stack.health(2).triton.pid != old_triton.pid


@pytest.mark.long
def test_a_route_that_was_recorded_but_not_applied_is_reported_and_repaired(
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
