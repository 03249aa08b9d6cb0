"""With two replicas every process of a version may be killed, one after another, and users lose nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.long

RATE = 5
"""Requests per second: enough for some to be under way whatever is killed."""
PATIENCE_SECONDS = 29
"""Of the clients, about."""


@pytest.fixture(scope="module")
def earlier_ids(stack_up: Any) -> set[str]:
    """Requests that were in the prediction log before: other tests may send the same id again."""
    return set(stack_up.predictions("request_id")["request_id"].to_list())


@pytest.fixture(scope="module")
def doubled(stack_up: Any, earlier_ids: set[str]) -> Iterator[Any]:
    """The champion with two servers and two Tritons, and users; afterwards it has one of each again."""
    deployer = stack_up.deployer_with({"replicas": 2}, {})
    with stack_up.visited(rate=RATE):
        deployer.serve()
        yield stack_up
        stack_up.deployer.serve()


def lost(live: Any) -> list[dict[str, Any]]:
    """Return the requests of users that were not answered with scores, whoever had them in hand.

    Left out are those for which a client waited in vain for half a minute: a killed process breaks connections off.
    """
    ledger = live.story.users.ledger.frame()
    answered = ledger.filter(ledger["answered"].is_not_nan())  # others are under way
    failed = [request for request in answered.to_dicts() if request["status"] != 200]
    return [
        request for request in failed if request["status"] or request["answered"] - request["sent"] < PATIENCE_SECONDS
    ]


@pytest.mark.parametrize("program", ["server-v{}", "triton-v{}-2"])
def test_a_killed_process_of_two_replicas_loses_no_request(doubled: Any, program: str) -> None:
    name = program.format(doubled.champion)
    doubled.comes_back(name, doubled.kill(name))
    assert lost(doubled) == []


def test_a_killed_process_in_which_a_triton_runs_its_model_loses_no_request(doubled: Any) -> None:
    name = f"triton-v{doubled.champion}-2"
    pid_before = doubled.pid(name)
    children = psutil.Process(pid_before).children(recursive=True)
    backend = next(child.pid for child in children if child.name().startswith("triton_python"))
    doubled.kill_process(backend, name)
    doubled.comes_back(name, pid_before)
    assert lost(doubled) == []


def test_a_killed_supervisor_loses_no_request_and_no_program(doubled: Any) -> None:
    version, stack = doubled.champion, doubled.stack
    pids_before = [program.pid for program in stack.health(version).programs]
    psutil.Process(int((doubled.paths.programs / "supervisord.pid").read_text())).kill()
    doubled.deployer_with({"replicas": 2}, {}).serve()
    assert [program.pid for program in doubled.stack.health(version).programs] == pids_before
    assert lost(doubled) == []


def test_a_retried_request_is_in_the_prediction_log_once(doubled: Any, earlier_ids: set[str]) -> None:
    def retried_rows() -> list[str]:
        return [
            request_id
            for request_id in doubled.predictions("request_id")["request_id"].to_list()
            if request_id not in earlier_ids
        ]

    doubled.until(retried_rows, "nothing was logged")
    rows = retried_rows()
    assert len(rows) == len(set(rows))
