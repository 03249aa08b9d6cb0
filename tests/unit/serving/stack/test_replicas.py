"""Two replicas of a version: one process of it may die at any time, and nobody notices."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.local.record import StackRecord
from shortlist.rollout.local.routes import clusters, routes
from shortlist.rollout.local.stack import Stack
from shortlist.serving.paths import ServingPaths
from shortlist.spec.serving import Overload, Serving

INFER = "/v2/models/demo/infer"
ASKERS = 6


@pytest.fixture(scope="module")
def stack(
    tmp_path_factory: pytest.TempPathFactory, bring_up: Callable[..., Stack], deployment: Callable[[int], Deployment]
) -> Stack:
    stack = bring_up(ServingPaths.of(tmp_path_factory.mktemp("runs"), "demo"), Serving(replicas=2))
    stack.deploy(deployment(1), Serving())
    stack.wait_ready(1, 120)
    stack.route(Route(stable=1))
    return stack


def ports(stack: Stack) -> list[int]:
    return [each.http for each in stack.record.versions[1].replicas]


def test_both_replicas_answer(stack: Stack, ask: Callable[..., Any], until: Callable[..., None]) -> None:
    seen: set[int] = set()

    def both() -> bool:
        seen.add(ask(stack, "POST", INFER, b"{}")[2]["port"])
        return seen == set(ports(stack))

    until(both)
    programs = [each.program for each in stack.health(1).programs]
    assert programs == ["triton-v1", "server-v1", "triton-v1-2", "server-v1-2"]
    assert stack.status().problems == ()


@pytest.mark.parametrize("replica", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_killed_server_loses_no_request(
    stack: Stack, ask: Callable[..., Any], until: Callable[..., None], replica: int
) -> None:
    stop, asked = Event(), [0] * ASKERS

    def keep_asking(number: int) -> list[int]:
        found = []
        while not stop.is_set():
            found.append(ask(stack, "POST", INFER, b"take your time")[0])
            asked[number] += 1
        return found

    with ThreadPoolExecutor(ASKERS) as askers:
        answers = [askers.submit(keep_asking, number) for number in range(ASKERS)]
        try:
            until(lambda: min(asked) > 2, 60)
            server, other = (stack.health(1).replicas[number].server for number in (replica, 1 - replica))
            os.kill(server.pid, 9)
            until(lambda: stack.health(1).replicas[replica].server.pid not in {None, server.pid}, 60)
            until(lambda: stack.health(1).ready, 120)
        finally:
            stop.set()
    statuses = [status for answer in answers for status in answer.result()]
    assert set(statuses) == {200}
    assert stack.health(1).replicas[1 - replica].server.restarts == other.restarts


def test_what_an_unready_server_refuses_another_answers_and_what_a_ready_one_refuses_is_refused(
    stack: Stack, ask: Callable[..., Any]
) -> None:
    for unready in ports(stack):
        for _ in range(4):
            status, _, body = ask(stack, "POST", INFER, f"unready at {unready}".encode())
            assert (status, body["port"] != unready) == (200, True)
    status, _, body = ask(stack, "POST", INFER, b"answer 503, once")
    assert (status, body["seen"]) == (503, 1)


@pytest.mark.long
def test_servers_whose_settings_changed_are_restarted_one_after_another(
    stack: Stack, bring_up: Callable[..., Stack], ask: Callable[..., Any]
) -> None:
    before = [each.server.pid for each in stack.health(1).replicas]
    stop = Event()

    def keep_asking() -> list[int]:
        found = []
        while not stop.is_set():
            found.append(ask(stack, "POST", INFER, b"take your time")[0])
        return found

    with ThreadPoolExecutor(ASKERS) as askers:
        answers = [askers.submit(keep_asking) for _ in range(ASKERS)]
        try:
            stack.deploy(stack.record.versions[1].deployment, Serving(refresh_seconds=7))
            stack.wait_ready(1, 120)
        finally:
            stop.set()
    after = [each.server.pid for each in stack.health(1).replicas]
    assert not set(before) & set(after)
    assert {status for answer in answers for status in answer.result()} == {200}


@pytest.mark.long
def test_the_number_of_replicas_follows_the_spec(
    stack: Stack, bring_up: Callable[..., Stack], ask: Callable[..., Any]
) -> None:
    before = stack.health(1)
    fewer = bring_up(stack.paths, Serving(replicas=1))
    after = fewer.wait_ready(1, 120)
    assert [each.program for each in after.programs] == ["triton-v1", "server-v1"]
    assert (after.triton.pid, after.server.pid) == (before.triton.pid, before.server.pid)
    assert set(fewer._supervisor.processes()) == {"envoy-a", "envoy-b", "triton-v1", "server-v1"}
    assert ask(fewer, "POST", INFER, b"{}")[0] == 200


@pytest.mark.long
def test_more_than_its_servers_can_hold_envoy_refuses_at_once_and_still_answers_for_their_health(
    stack: Stack, bring_up: Callable[..., Stack], ask: Callable[..., Any]
) -> None:
    limits = Overload(max_concurrent=1, max_waiting=0)
    few = bring_up(stack.paths, Serving(replicas=1, overload=limits))
    few.wait_ready(1, 120)
    with ThreadPoolExecutor(12) as askers:
        answers = [askers.submit(ask, few, "POST", INFER, b"take your time") for _ in range(24)]
        assert ask(few, "GET", "/v2/health/ready")[0] == 200
    found = [answer.result() for answer in answers]
    refused = [headers for status, headers, _ in found if status == 503]
    assert {status for status, _, _ in found} == {200, 503}
    assert {headers["retry-after"] for headers in refused} == {"1"}


def test_one_server_is_neither_asked_for_its_health_nor_put_aside(stack: Stack) -> None:
    record = StackRecord.read(stack.paths.record)
    assert record is not None
    one = clusters({1: record.versions[1].replicas[:1]}, 100)["resources"][0]
    assert not {"health_checks", "outlier_detection"} & set(one)
    for limits in one["circuit_breakers"]["thresholds"]:
        assert limits["max_requests"] == limits["max_pending_requests"] == 100
    assert "retriable" not in json.dumps(routes("demo", Route(stable=1), 15, 2**20))
