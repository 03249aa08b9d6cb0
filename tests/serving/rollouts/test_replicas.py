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
def earlier(stack_up: Any) -> set[str]:
    """Requests that were in the prediction log before: other tests may send the same id again."""
    return set(stack_up.predictions("request_id")["request_id"].to_list())


@pytest.fixture(scope="module")
def doubled(stack_up: Any, earlier: set[str]) -> Iterator[Any]:
    """The champion with two servers and two Tritons, and users; afterwards it has one of each again."""
    more = stack_up.deployer_with({"replicas": 2}, {})
    with stack_up.visited(rate=RATE):
        more.serve()
        yield stack_up
        stack_up.deployer.serve()


def lost(live: Any) -> list[dict[str, Any]]:
    """Return the requests of users that were not answered with scores, whoever had them in hand.

    Left out are those for which a client waited in vain for half a minute: a killed process breaks connections off.
    """
    ledger = live.story.users.ledger.frame()
    answered = ledger.filter(ledger["answered"].is_not_nan())  # others are under way
    failed = [one for one in answered.to_dicts() if one["status"] != 200]
    return [one for one in failed if one["status"] or one["answered"] - one["sent"] < PATIENCE_SECONDS]


@pytest.mark.parametrize("program", ["server-v{}", "server-v{}-2", "triton-v{}", "triton-v{}-2"])
def test_a_killed_process_of_two_replicas_loses_no_request(doubled: Any, program: str) -> None:
    name = program.format(doubled.champion)
    doubled.comes_back(name, doubled.kill(name))
    assert lost(doubled) == []


def test_a_killed_process_in_which_a_triton_runs_its_model_loses_no_request(doubled: Any) -> None:
    name = f"triton-v{doubled.champion}-2"
    before = doubled.pid(name)
    children = psutil.Process(before).children(recursive=True)
    backend = next(one.pid for one in children if one.name().startswith("triton_python"))
    doubled.kill_process(backend, name)
    doubled.comes_back(name, before)
    assert lost(doubled) == []


def test_a_killed_supervisor_loses_no_request_and_restarts_nothing(doubled: Any) -> None:
    version, stack = doubled.champion, doubled.stack
    before = [one.pid for one in stack.health(version).programs]
    psutil.Process(int((doubled.paths.programs / "supervisord.pid").read_text())).kill()
    doubled.deployer_with({"replicas": 2}, {}).serve()
    assert [one.pid for one in doubled.stack.health(version).programs] == before
    assert lost(doubled) == []


def test_a_retried_request_is_in_the_prediction_log_once(doubled: Any, earlier: set[str]) -> None:
    def own() -> list[str]:
        return [one for one in doubled.predictions("request_id")["request_id"].to_list() if one not in earlier]

    doubled.until(own, "nothing was logged")
    found = own()
    assert len(found) == len(set(found))
