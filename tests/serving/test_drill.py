"""The loop closes by itself: a world is broken on purpose, with real servers, training and rollout."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from shortlist.contracts import Columns, ShortlistError
from shortlist.data.collected import ROWS, CollectedLog
from shortlist.drill.drill import run_drill
from shortlist.rollout.rollouts import open_rollouts
from shortlist.serving.paths import ServingPaths
from shortlist.serving.processes.orphan_processes import orphan_processes
from shortlist.spec.load import parse_spec
from shortlist.spec.spec import Spec

SHIPPED = Path(__file__).parents[2] / "pipelines/specs/drill.yaml"
BEGIN = datetime(2026, 1, 5, tzinfo=UTC)


def smaller(*drifts: dict[str, Any], days: int) -> Spec:
    """The shipped drill in a smaller world with fewer days and other drifts."""
    spec: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
    sizes = {"rows": 2_500 * days, "users": 500, "items": 150, "days": days}
    spec["data"]["source"] |= sizes | {"drifts": list(drifts)}
    spec["data"]["live"] |= {"max_share": 1}  # every row is accounted for
    del spec["retrieval"]["sources"]["towers"]
    spec["retrieval"] |= {"candidates": 100, "simulated_requests": 50}
    spec["gates"] |= {"min_test_rows": 500, "max_auc_drop": 0.1}
    spec["monitoring"] |= {"pages": "none"}
    spec["serving"]["log"] |= {"feature_sampling": 1.0}
    return patient(spec)


def patient(spec: dict[str, Any]) -> Spec:
    """Return a spec for which servers may be slow: beside other tests, that tells nothing of what is tested here."""
    spec["gates"]["infra"] |= {"max_p50_ms": 5_000, "max_p99_ms": 10_000}
    spec["gates"]["infra"] |= {"max_slate_p50_ms": 5_000, "max_slate_p99_ms": 10_000}
    spec["serving"]["canary"]["guardrails"] |= {"max_p99_ms": 10_000, "latency_floor_ms": 10_000}
    spec["serving"]["overload"] = {"max_wait_ms": 60_000, "max_waiting": 10_000}  # nothing is refused
    return parse_spec(yaml.safe_dump(spec))


CHAIN = ("collect", "check_live_traffic", "ingest", "train_xgboost", "evaluate_gates", "register", "roll_out")
"""Steps of the graph, in the order of their ends."""


@pytest.mark.long
@pytest.mark.timeout(1_800)  # two trainings, a stack and a canary
def test_live_traffic_becomes_the_next_champion(tmp_path: Path) -> None:
    """Served, collected, judged, trained, rolled out to users and promoted, by the compiled graphs alone."""
    runs = tmp_path / "runs"
    run_drill(small(), runs)
    (scenario,) = json.loads((runs / "latest/drill.json").read_text())["scenarios"]
    assert (scenario["decision"], scenario["retrained"], scenario["promoted"]) == ("retrain", True, True)
    assert "auc" in scenario["columns_named"]  # no column looks different: what tells is how well the model ranks
    assert scenario["auc_promoted"] > scenario["auc_frozen"] > 0.5  # on later live rows

    # One run of the monitoring graph, which was told no cause, collected, decided, trained and rolled out.
    (trained,) = (path.parent for path in runs.glob("*-watch/summary.json"))
    events = [json.loads(line) for line in (trained / "events.jsonl").read_text().splitlines()]
    steps = [event["name"] for event in events if event["event"] == "done"]
    assert [name for name in steps if name in CHAIN] == list(CHAIN)
    cause = json.loads((trained / "arguments.json").read_text())["cause"]
    assert cause == {"trigger": "manual", "key": "", "reasons": [], "until": ""}
    assert (
        json.loads((trained / "summary.json").read_text())["rows"]["collected"]
        == (scenario["collected_rows_trained_on"])
    )

    # Users asked while it was rolled out; what both versions answered them became rows, and nothing failed.
    rollouts = open_rollouts(str(runs / "stores"), "drill")
    verdict = rollouts.verdict(rollouts.ids()[-1])
    assert verdict is not None
    assert (verdict.verdict, verdict.champion, verdict.candidate) == ("promoted", 1, 2)
    assert (verdict.requests.stable.failed, verdict.requests.canary.failed, verdict.requests.lost) == (0, 0, 0)
    collected = CollectedLog.open(str(runs / "stores"), "drill")
    rows = pl.concat(pl.read_parquet(files / ROWS) for _, files in collected.fetch_batches(collected.batches()))
    collected_later = rows.filter(pl.col(Columns.TIME) >= datetime.fromisoformat(scenario["alarm_at"]))
    assert collected_later.filter(pl.col(Columns.SERVED_TRACK) == "canary")[
        Columns.SERVED_VERSION
    ].unique().to_list() == [2]
    assert set(collected_later[Columns.SERVED_VERSION]) == {1, 2}
    assert (
        scenario["collected_rows_trained_on"] == rows.height - collected_later.height
    )  # up to `until`, and nothing after it

    # What scored on the first day of the rollout, by both versions, is what the feature table computes.
    notes = "\n".join(event["text"] for event in events if event["event"] == "note")
    assert "\nServed features: all " in notes  # the look itself says so
    served = json.loads((trained / "served_features.json").read_text())["columns"]
    assert {"position", "by_item_id:rows_7d", "by_user_id__tags:sum_label_3d", "score"} <= set(served)
    assert all(comparison["compared"] == comparison["equal"] > 1_000 for comparison in served.values())
    score = served.pop("score")["largest_difference"]
    assert score < 1e-5 and {comparison["largest_difference"] for comparison in served.values()} == {0}


@pytest.mark.long
@pytest.mark.timeout(1_800)  # three trainings and a canary
def test_a_broken_column_pages_and_new_items_are_learnt_and_rolled_out(tmp_path: Path) -> None:
    broken = {"kind": "broken_column", "from_day": 12, "until_day": 13, "strength": 1.0, "column": "duration"}
    spec = shorter(broken, {"kind": "new_items", "from_day": 14, "strength": 0.5}, days=20)
    runs = tmp_path / "runs"
    assert run_drill(spec, runs).passed
    facts = json.loads((runs / "latest/drill.json").read_text())
    page, trained = facts["scenarios"]
    assert (facts["false_alarms"], facts["quiet_windows"]) == (0, 2)
    assert (page["name"], page["decision"], page["retrained"], page["columns_named"]) == (
        "broken_column", "page", False, ["duration"],
    )  # fmt: skip
    assert datetime.fromisoformat(page["alarm_at"]) == BEGIN + timedelta(days=13)  # the end of its first day
    assert (trained["decision"], trained["retrained"], trained["promoted"]) == ("retrain", True, True)
    assert "item_id" in trained["columns_named"]
    assert datetime.fromisoformat(trained["alarm_at"]) == BEGIN + timedelta(days=16)  # two bad days of three
    champions = [day["champion"] for day in facts["days"]]
    assert champions[:6] == [1] * 6 and sorted(champions) == champions and champions[-1] == 2  # by most users
    # What it learnt from was collected from what was served; the log of the first ten days ends before.
    assert trained["collected_rows_trained_on"] > 10_000
    assert trained["auc_promoted"] > trained["auc_frozen"] > 0.5  # on the days after the training
    status = (runs / "monitoring/drill/status.html").read_text()
    assert "version 2" in status and "duration" in status
    assert orphan_processes(ServingPaths.for_spec(runs, "drill").programs) == {}  # nothing is left running
    with pytest.raises(ShortlistError, match="a drill needs a new folder"):
        run_drill(spec, runs)


def test_a_world_that_does_not_break_is_no_drill(tmp_path: Path) -> None:
    with pytest.raises(ShortlistError, match="'drill': wanted data\\.source of kind generated with drifts"):
        run_drill(shorter(days=12), tmp_path / "runs")
