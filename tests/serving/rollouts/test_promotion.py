"""A good candidate reaches everybody; a bad one is sent back."""

from __future__ import annotations

from typing import Any

import polars as pl

from shortlist.deployment.slate_explanation import explain
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


def check_slate(live: Any, shown_items: set[int]) -> set[int]:
    """Pass when the champion's slate is in the order of its release, logged and explained; return all items shown."""
    version, name = live.champion, f"slate-{live.champion}"
    is_best_first = version == live.world.versions["first"]
    headers, slate = live.recommended(name, 5)
    assert (headers["x-shortlist-version"], headers["x-shortlist-track"]) == (str(version), "stable")
    assert slate["score"] == sorted(slate["score"], reverse=is_best_first)
    assert set(slate["source"]) <= {"popular", "together"} and slate["position"] == [1, 2, 3, 4, 5]
    assert not {*slate["item_id"]} & shown_items  # seen, also where another version showed it
    request = pl.col("request_id") == name
    live.until(lambda: live.predictions("request_id").filter(request).height == 1, "the slate was not logged")
    row = live.predictions().filter(request).to_dicts()[0]
    assert (row["items"], row["version"], row["track"]) == (slate["item_id"], version, "stable")
    text = "\n".join(explain(live.paths, name))
    assert f"version {version}, stable" in text and "retrieval  50 candidates" in text
    return shown_items | {*slate["item_id"]}


def test_a_good_candidate_is_promoted_step_by_step_and_nothing_is_lost_or_written_twice(live: Any) -> None:
    former, candidate = live.champion, live.other_version
    shown_items = check_slate(live, set())
    command = live.command("deploy-canary", "--version", str(candidate))
    output, error = command.communicate(timeout=300)
    assert command.returncode == 0, output + error
    assert "Promoted" in output
    live.keep_replay()
    check_slate(live, shown_items)  # by a release that orders otherwise

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


def test_shuffled_scores_send_the_users_back_though_the_servers_are_well(live: Any) -> None:
    record = live.roll_out(live.world.versions["shuffled"])
    evidence = live.rolled_back(record, r"KPI difference -0\.\d+ in \[.*\] .*: the canary is worse")
    assert live.failed_checks(record) == ["kpi"]
    assert evidence.requests.canary.failed == 0
