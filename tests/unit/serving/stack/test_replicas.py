"""Two replicas of a version: either process may die at any time without a failed request."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.local.envoy.routes import clusters, routes
from shortlist.rollout.local.record import StackRecord
from shortlist.rollout.local.stack import Stack
from shortlist.serving.paths import ServingPaths
from shortlist.spec.serving import Overload, Serving

INFER = "/v2/models/demo/infer"
ASKERS = 6


@pytest.fixture(scope="module")
def stack(
    tmp_path_factory: pytest.TempPathFactory, bring_up: Callable[..., Stack], deployment: Callable[[int], Deployment]
) -> Stack:
    stack = bring_up(ServingPaths.for_spec(tmp_path_factory.mktemp("runs"), "demo"), Serving(replicas=2))
    stack.deploy(deployment(1), Serving())
    stack.wait_ready(1, 120)
    stack.route(Route(stable=1))
    return stack


def ports(stack: Stack) -> list[int]:
    return [replica.http for replica in stack.record.versions[1].replicas]


def test_both_replicas_answer(stack: Stack, ask: Callable[..., Any], until: Callable[..., None]) -> None:
    seen_ports: set[int] = set()

    def both_answered() -> bool:
        seen_ports.add(ask(stack, "POST", INFER, b"{}")[2]["port"])
        return seen_ports == set(ports(stack))

    until(both_answered)
    programs = [program.program for program in stack.health(1).programs]
    assert programs == ["triton-v1", "server-v1", "triton-v1-2", "server-v1-2"]
    assert stack.status().problems == ()


@pytest.mark.parametrize("replica", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_killed_server_loses_no_request(
    stack: Stack, ask: Callable[..., Any], until: Callable[..., None], replica: int
) -> None:
    stop, request_counts = Event(), [0] * ASKERS

    def keep_asking(number: int) -> list[int]:
        statuses = []
        while not stop.is_set():
            statuses.append(ask(stack, "POST", INFER, b"take your time")[0])
            request_counts[number] += 1
        return statuses

    with ThreadPoolExecutor(ASKERS) as askers:
        answers = [askers.submit(keep_asking, number) for number in range(ASKERS)]
        try:
            until(lambda: min(request_counts) > 2, 60)
            server, other_server = (stack.health(1).replicas[number].server for number in (replica, 1 - replica))
            os.kill(server.pid, 9)
            until(lambda: stack.health(1).replicas[replica].server.pid not in {None, server.pid}, 60)
            until(lambda: stack.health(1).ready, 120)
        finally:
            stop.set()
    statuses = [status for answer in answers for status in answer.result()]
    assert set(statuses) == {200}
    assert stack.health(1).replicas[1 - replica].server.restarts == other_server.restarts


def test_a_refusal_of_an_unready_server_is_retried_elsewhere_and_that_of_a_ready_one_is_not(
    stack: Stack, ask: Callable[..., Any]
) -> None:
    for unready in ports(stack):
        for _ in range(4):
            status, _, body = ask(stack, "POST", INFER, f"unready at {unready}".encode())
            assert (status, body["port"] != unready) == (200, True)
    status, _, body = ask(stack, "POST", INFER, b"answer 503, once")
    assert (status, body["seen"]) == (503, 1)


@pytest.mark.long
def test_servers_with_changed_settings_are_restarted_one_at_a_time(
    stack: Stack, bring_up: Callable[..., Stack], ask: Callable[..., Any]
) -> None:
    old_pids = [replica.server.pid for replica in stack.health(1).replicas]
    stop = Event()

    def keep_asking() -> list[int]:
        statuses = []
        while not stop.is_set():
            statuses.append(ask(stack, "POST", INFER, b"take your time")[0])
        return statuses

    with ThreadPoolExecutor(ASKERS) as askers:
        answers = [askers.submit(keep_asking) for _ in range(ASKERS)]
        try:
            stack.deploy(stack.record.versions[1].deployment, Serving(refresh_seconds=7))
            stack.wait_ready(1, 120)
        finally:
            stop.set()
    new_pids = [replica.server.pid for replica in stack.health(1).replicas]
    assert not set(old_pids) & set(new_pids)
    assert {status for answer in answers for status in answer.result()} == {200}


@pytest.mark.long
def test_the_number_of_replicas_follows_the_spec(
    stack: Stack, bring_up: Callable[..., Stack], ask: Callable[..., Any]
) -> None:
    old_health = stack.health(1)
    smaller_stack = bring_up(stack.paths, Serving(replicas=1))
    new_health = smaller_stack.wait_ready(1, 120)
    assert [program.program for program in new_health.programs] == ["triton-v1", "server-v1"]
    assert (new_health.triton.pid, new_health.server.pid) == (old_health.triton.pid, old_health.server.pid)
    assert set(smaller_stack._supervisor.processes()) == {
        "envoy-a",
        "envoy-b",
        "log-committer",
        "triton-v1",
        "server-v1",
    }
    assert ask(smaller_stack, "POST", INFER, b"{}")[0] == 200


@pytest.mark.long
def test_envoy_refuses_requests_beyond_its_servers_capacity_and_still_serves_health(
    stack: Stack, bring_up: Callable[..., Stack], ask: Callable[..., Any]
) -> None:
    limits = Overload(max_concurrent=1, max_waiting=0)
    small_stack = bring_up(stack.paths, Serving(replicas=1, overload=limits))
    small_stack.wait_ready(1, 120)
    with ThreadPoolExecutor(12) as askers:
        answers = [askers.submit(ask, small_stack, "POST", INFER, b"take your time") for _ in range(24)]
        assert ask(small_stack, "GET", "/v2/health/ready")[0] == 200
    responses = [answer.result() for answer in answers]
    refused = [headers for status, headers, _ in responses if status == 503]
    assert {status for status, _, _ in responses} == {200, 503}
    assert {headers["retry-after"] for headers in refused} == {"1"}


def test_a_single_server_has_no_health_checks_and_is_never_ejected(stack: Stack) -> None:
    record = StackRecord.read(stack.paths.record)
    assert record is not None
    one_server = clusters({1: record.versions[1].replicas[:1]}, 100)["resources"][0]
    assert not {"health_checks", "outlier_detection"} & set(one_server)
    for limits in one_server["circuit_breakers"]["thresholds"]:
        assert limits["max_requests"] == limits["max_pending_requests"] == 100
    assert "retriable" not in json.dumps(routes("demo", Route(stable=1), Serving()))
