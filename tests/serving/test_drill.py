"""The loop closes by itself: a world is broken on purpose, with real servers, training and rollout."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from shortlist.contracts import Columns, ShortlistError
from shortlist.data.collected import ROWS, CollectedLog
from shortlist.drill.drill import TRAIN_DAYS, run_drill
from shortlist.loop.policies import POLICIES
from shortlist.rollout.rollouts import open_rollouts
from shortlist.serving.paths import ServingPaths
from shortlist.serving.processes.orphan_processes import orphan_processes
from shortlist.spec.load import parse_spec
from shortlist.spec.spec import Spec

SHIPPED = Path(__file__).parents[2] / "pipelines/specs/drill.yaml"
BEGIN = datetime(2026, 1, 5, tzinfo=UTC)
SLATES = 400


def smaller(*drifts: dict[str, Any], days: int) -> Spec:
    """The shipped drill in a smaller world with fewer days and other drifts."""
    spec: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
    sizes = {"rows": 2_500 * days, "users": 500, "items": 150, "days": days}
    spec["data"]["source"] |= sizes | {"drifts": list(drifts)}
    spec["data"]["live"] |= {"max_share": 1}  # every row is accounted for
    del spec["retrieval"]["sources"]["towers"]
    spec["retrieval"] |= {"candidates": 100, "simulated_requests": 50}
    spec["gates"] |= {"min_test_rows": 500, "max_auc_drop": 0.1}
    spec["monitoring"] |= {"pages": "none", "retrain": {"cooldown_hours": 240}}  # one training shows it
    spec["serving"]["log"] |= {"feature_sampling": 1.0}
    return patient(spec)


def patient(spec: dict[str, Any]) -> Spec:
    """Return a spec for which servers may be slow: beside other tests, that tells nothing of what is tested here."""
    spec["gates"]["infra"] |= {"max_p50_ms": 5_000, "max_p99_ms": 10_000}
    spec["gates"]["infra"] |= {"max_slate_p50_ms": 5_000, "max_slate_p99_ms": 10_000}
    spec["serving"]["canary"]["guardrails"] |= {"max_p99_ms": 10_000, "latency_floor_ms": 10_000}
    spec["serving"]["overload"] = {"max_wait_ms": 60_000, "max_waiting": 10_000}  # nothing is refused
    return parse_spec(yaml.safe_dump(spec))


CHAIN = ("collect", "check_live_traffic", "ingest", "train_logistic", "evaluate_gates", "register", "roll_out")
"""Steps of the graph, in the order of their ends."""


@pytest.mark.long
@pytest.mark.timeout(1_800)  # two trainings, a stack and a canary
def test_live_traffic_becomes_the_next_champion(tmp_path: Path) -> None:
    """Served, collected, judged, trained, rolled out to users and promoted, by the compiled graphs alone."""
    runs = tmp_path / "runs"
    tastes = {"kind": "changed_tastes", "from_day": TRAIN_DAYS, "strength": 1.0}
    run_drill(smaller(tastes, days=TRAIN_DAYS + 8), runs, SLATES)
    facts = json.loads((runs / "latest/drill.json").read_text())
    (scenario,) = facts["scenarios"]
    assert (scenario["decision"], scenario["retrained"], scenario["promoted"]) == ("retrain", True, True)
    # Users answer what they are shown: on later days they click more than on what the first release would have shown.
    assert scenario["reward_after"] > scenario["reward_frozen"]
    _check_rewards(facts["rewards"], days=8)

    # One run of the monitoring graph, which was told no cause, collected, decided, trained and rolled out.
    trained = next(path.parent for path in sorted(runs.glob("*-watch/summary.json")) if _is_blessed(path))
    events = [json.loads(line) for line in (trained / "events.jsonl").read_text().splitlines()]
    steps = [event["name"] for event in events if event["event"] == "done"]
    assert [name for name in steps if name in CHAIN] == list(CHAIN)
    cause = json.loads((trained / "arguments.json").read_text())["cause"]
    assert cause == {"trigger": "manual", "key": "", "reasons": [], "until": ""}
    assert (
        json.loads((trained / "summary.json").read_text())["rows"]["collected"]
        == (scenario["collected_rows_trained_on"])
    )

    # What scored before, as a sample of the answers says, is what the feature table computes.
    notes = "\n".join(event["text"] for event in events if event["event"] == "note")
    assert re.search(r"\nServed features: all \d+ columns equal in [\d,]+ rows", notes), notes

    # Users asked while it was rolled out; what both versions answered them became rows, and nothing failed.
    rollouts = open_rollouts(str(runs / "stores"), "drill")
    verdicts = [verdict for name in rollouts.ids() if (verdict := rollouts.verdict(name)) is not None]
    verdict = next(verdict for verdict in verdicts if verdict.candidate == 2)
    assert (verdict.verdict, verdict.champion) == ("promoted", 1)
    assert (verdict.requests.stable.failed, verdict.requests.canary.failed, verdict.requests.lost) == (0, 0, 0)
    collected = CollectedLog.open(str(runs / "stores"), "drill")
    rows = pl.concat(pl.read_parquet(files / ROWS) for _, files in collected.fetch_batches(collected.batches()))
    assert {"stable", "canary"} == set(rows[Columns.SERVED_TRACK])
    assert {1, 2} <= set(rows[Columns.SERVED_VERSION])
    assert rows.filter(pl.col(Columns.SERVED_TRACK) == "canary", pl.col(Columns.SERVED_VERSION) == 1).is_empty()
    until = datetime.fromisoformat(scenario["alarm_at"])  # of the window that the training was decided on
    assert rows.filter(pl.col(Columns.TIME) < until).height == scenario["collected_rows_trained_on"]
    # Users see half of their slates; what nobody saw is no negative.
    slates = sum(day["slates"] for day in facts["rewards"]["days"] if day["policy"] == "loop")
    assert 2 * slates < rows.height < 8 * slates


def _is_blessed(summary: Path) -> bool:
    return json.loads(summary.read_text())["blessed"] is not None


def _check_rewards(rewards: dict[str, Any], days: int) -> None:
    """Check that every day has the reward of every policy, and what is true of each."""
    by_policy = {
        policy: [day["reward_per_slate"] for day in rewards["days"] if day["policy"] == policy] for policy in POLICIES
    }
    assert {len(clicks) for clicks in by_policy.values()} == {days}
    for best, loop, chance in zip(*(by_policy[name] for name in ("best_possible", "loop", "chance")), strict=True):
        assert chance < loop <= best
    assert by_policy["loop"][0] == pytest.approx(by_policy["frozen"][0], rel=0.02)  # the same release, in two processes
    assert rewards["regret"]["best_possible"] == 0 < rewards["regret"]["loop"] < rewards["regret"]["chance"]


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_a_broken_column_and_a_collapse_page_and_train_nobody(tmp_path: Path) -> None:
    broken = {"kind": "broken_column", "from_day": 12, "until_day": 13, "strength": 1.0, "column": "device"}
    collapse = {"kind": "volume_collapse", "from_day": 14, "until_day": 15, "strength": 0.9}
    runs = tmp_path / "runs"
    run_drill(smaller(broken, collapse, days=16), runs, SLATES)
    facts = json.loads((runs / "latest/drill.json").read_text())
    pages = facts["scenarios"]
    assert [(page["name"], page["decision"], page["retrained"]) for page in pages] == [
        ("broken_column", "page", False), ("volume_collapse", "page", False),
    ]  # fmt: skip
    assert [page["columns_named"] for page in pages] == [["device"], ["volume"]]
    assert datetime.fromisoformat(pages[0]["alarm_at"]) == BEGIN + timedelta(days=13)  # the end of its first day
    status = (runs / "monitoring/drill/status.html").read_text()
    assert "device" in status
    assert orphan_processes(ServingPaths.for_spec(runs, "drill").programs) == {}  # nothing is left running
    with pytest.raises(ShortlistError, match="a drill needs a new folder"):
        run_drill(smaller(broken, days=16), runs)


def test_a_world_that_does_not_break_is_no_drill(tmp_path: Path) -> None:
    with pytest.raises(ShortlistError, match="got 10; wanted more than 10"):
        run_drill(smaller({"kind": "new_items", "from_day": 9}, days=10), tmp_path / "runs")
    with pytest.raises(ShortlistError, match="'drill': wanted data\\.source of kind generated with drifts"):
        run_drill(smaller(days=12), tmp_path / "runs")
