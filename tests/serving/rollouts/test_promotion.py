"""A good candidate reaches everybody, and leaves when it is asked to; a bad one is sent back."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from shortlist.rollout.page import PAGE
from shortlist.rollout.states.phases import Phase
from shortlist.serving.log.logs import REPLAYED_ID


def test_the_first_model_serves_everybody_once_its_servers_are_load_tested(stack_up: Any) -> None:
    first = stack_up.started
    assert first.state.phase is Phase.PROMOTED
    phases = [change.phase for change in first.history]
    assert phases[2:] == [Phase.LOAD_TESTING, Phase.PROMOTING, Phase.CONFIRMING, Phase.DRAINING, Phase.PROMOTED]
    version = stack_up.world.versions["first"]
    assert (first.state.former, first.state.stable) == (None, version)
    serving, *_ = stack_up.deployer.versions(stack_up.stack)
    assert serving.startswith(f"Version {stack_up.stack.record.route.stable} serves: ")


def test_a_good_candidate_is_promoted_step_by_step_and_nothing_is_lost_or_written_twice(live: Any) -> None:
    former, candidate = live.champion, live.other_version
    command = live.command("deploy-canary", "--version", str(candidate))
    output, error = command.communicate(timeout=300)
    assert command.returncode == 0, output + error
    assert "Promoted" in output
    live.keep_replay()

    record = live.record()
    evidence = live.evidence(record)
    assert (evidence.verdict, evidence.champion, evidence.candidate) == ("promoted", former, candidate)
    assert [(step.weight, step.decision) for step in evidence.steps] == [
        (10, "proceed"), (50, "proceed"), (100, "promote"),
    ]  # fmt: skip
    for step in evidence.steps:
        assert step.failed == 0 and step.requests >= 40
        assert step.p99_ms.canary is not None and step.kpi.canary is not None
    requests = evidence.requests
    assert (requests.stable.failed, requests.canary.failed, requests.lost) == (0, 0, 0)
    assert requests.logged == requests.total > 200
    assert live.deployer.rollouts.rollout_folder(record.id).joinpath(PAGE).stat().st_size > 10_000

    # The client's own books say the same as Envoy's and as the prediction log.
    (replayed,) = live.story.replays
    assert (replayed["status"] == 200).all()
    assert replayed["id"].str.starts_with(REPLAYED_ID).all()  # which no collector reads
    logged = live.predictions("request_id", "rollout", "user", "step", "track").filter(
        pl.col("request_id").is_in(replayed["id"].implode())
    )
    assert logged.height == replayed.height == logged["request_id"].n_unique()
    # Nobody is sent to the candidate and back; a step's share of the users is its weight, within five standard errors.
    by_user = logged.filter(pl.col("rollout") == record.id).group_by("user", "step")
    users = by_user.agg(pl.col("track").n_unique().alias("tracks"), pl.col("track").first() == "canary")
    assert users["tracks"].max() == 1
    for number, step in enumerate(evidence.steps):
        share = users.filter(pl.col("step") == number)["track"]
        weight = step.weight / 100
        assert abs(share.mean() - weight) <= 5 * (weight * (1 - weight) / share.len()) ** 0.5


@pytest.mark.long
def test_a_promotion_is_taken_back_by_a_rollback(live: Any) -> None:
    now, former = live.champion, live.other_version
    if live.record().state.former is None:
        live.roll_out(live.other_version)
        now, former = former, now
    record = live.deployer.rollback()
    assert (record.state.phase, record.returning, live.champion) == (Phase.PROMOTED, True, former)
    assert (record.state.former, record.steps) == (now, ())


def test_shuffled_scores_send_the_users_back_though_the_servers_are_well(live: Any) -> None:
    record = live.roll_out(live.world.versions["shuffled"])
    evidence = live.rolled_back(record, r"KPI difference -0\.\d+ in \[.*\] .*: the canary is worse")
    assert live.failed_checks(record) == ["kpi"]
    assert evidence.requests.canary.failed == 0
