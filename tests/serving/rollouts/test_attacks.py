"""A client without the backend's token sends what it likes to users of one track, whom it knows; it decides nothing."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.attacks import Attacker
from shortlist.rollout.local.stack import Stack
from shortlist.rollout.states.phases import Phase

pytestmark = pytest.mark.long


def test_invented_users_of_the_canary_do_not_send_a_good_candidate_back(live: Any) -> None:
    attacker = Attacker(live.stack.backend_endpoint())
    # Latencies of a busy machine are not looked at.
    limits = {"latency_floor_ms": 60_000, "max_p99_ms": 60_000}
    policy = {"steps": [50, 100], "interval_seconds": 6, "guardrails": limits}
    deployer = live.deployer_with({"traffic": {"kind": "replay", "rate": 30, "days": 2}}, policy)
    rollout = live.begin(live.other_version, deployer)
    live.reaches(Phase.WATCHING, 50)
    users = attacker.users_of("canary", 10)
    deeds = attacker.wrong_request, attacker.empty_slate, attacker.aborted_request, attacker.same_items
    with attacker.attack(users, *deeds):
        record = live.end(rollout)
    assert record.state.phase is Phase.PROMOTED, record.state.reason
    canary = live.evidence(record).requests.canary
    assert attacker.sent > 100 and canary.left_out > 50
    assert canary.client_errors > 20


def test_bad_requests_of_the_stable_track_do_not_excuse_a_bad_candidate(live: Any) -> None:
    attacker = Attacker(live.stack.backend_endpoint())
    with attacker.attack([f"invented-{number}" for number in range(40)], attacker.same_items):  # nine of ten are stable
        record = live.roll_out(live.world.versions["all_the_same"])
    live.rolled_back(record, "at (10|50) %: constant scores")


def test_without_a_token_a_declared_backend_on_this_machine_vouches_for_its_users(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = live.stack.backend_endpoint().model_copy(update={"token": None})
    monkeypatch.setattr(Stack, "backend_endpoint", lambda _: endpoint)  # of the rollout's own replay too
    deployer = live.deployer_with(
        {"backends": ["127.0.0.1"], "traffic": {"kind": "replay", "rate": 30, "days": 2}},
        {"steps": [50, 100], "guardrails": {"latency_floor_ms": 60_000, "max_p99_ms": 60_000}},
    )
    record = live.roll_out(live.other_version, deployer)
    assert record.state.phase is Phase.PROMOTED, record.state.reason
    totals = live.evidence(record).requests
    assert (totals.canary.left_out, totals.canary.logged_left_out, totals.lost) == (0, 0, 0)
    assert set(live.predictions("sender", "rollout").filter(rollout=record.id)["sender"]) == {"backend", "127.0.0.1"}
