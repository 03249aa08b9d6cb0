"""The loop closes by itself: a world is broken on purpose, with real servers, training and rollout."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from shortlist.contracts import ShortlistError
from shortlist.drill.drill import drill
from shortlist.serving.paths import ServingPaths
from shortlist.serving.processes.orphan_processes import orphan_processes
from shortlist.spec.load import parse_spec
from shortlist.spec.spec import Spec

SHIPPED = Path(__file__).parents[2] / "pipelines/specs/drill.yaml"
BEGIN = datetime(2026, 1, 5, tzinfo=UTC)


def shorter(*drifts: dict[str, Any], days: int) -> Spec:
    """The shipped drill with fewer days and other drifts."""
    spec: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
    spec["data"]["source"] |= {"rows": 3_500 * days, "days": days, "drifts": list(drifts)}
    spec["models"]["xgboost"] |= {"rounds": 150}
    spec["monitoring"] |= {"pages": "none"}
    # How fast servers answer beside other tests tells nothing of what is tested here.
    spec["gates"]["infra"] |= {"max_p50_ms": 5_000, "max_p99_ms": 10_000}
    spec["gates"]["infra"] |= {"max_slate_p50_ms": 5_000, "max_slate_p99_ms": 10_000}
    spec["serving"]["canary"]["guardrails"] |= {"max_p99_ms": 10_000, "latency_floor_ms": 10_000}
    return parse_spec(yaml.safe_dump(spec))


@pytest.mark.full_size
@pytest.mark.timeout(1_800)  # three trainings and a canary
def test_a_broken_column_pages_and_new_items_are_learnt_and_rolled_out(tmp_path: Path) -> None:
    broken = {"kind": "broken_column", "from_day": 12, "until_day": 13, "strength": 1.0, "column": "duration"}
    spec = shorter(broken, {"kind": "new_items", "from_day": 14, "strength": 0.5}, days=18)
    runs = tmp_path / "runs"
    assert drill(spec, runs).passed
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
    assert [day["champion"] for day in facts["days"]] == [1, 1, 1, 1, 1, 1, 2, 2]
    # What it learnt from was collected from what was served; the log of the first ten days ends before.
    assert trained["collected_rows_trained_on"] > 10_000
    assert trained["auc_promoted"] > trained["auc_frozen"] > 0.5  # on the day after the promotion
    status = (runs / "monitoring/drill/status.html").read_text()
    assert "version 2" in status and "duration" in status
    assert orphan_processes(ServingPaths.of(runs, "drill").programs) == {}  # nothing is left running
    with pytest.raises(ShortlistError, match="a drill starts from nothing"):
        drill(spec, runs)


@pytest.mark.full_size
@pytest.mark.timeout(1_800)  # two trainings and a canary
def test_changed_tastes_are_learnt_from_what_was_served(tmp_path: Path) -> None:
    """No column looks different: what tells is how well the model ranks."""
    spec = shorter({"kind": "changed_tastes", "from_day": 12, "strength": 1.0}, days=17)
    runs = tmp_path / "runs"
    assert drill(spec, runs).passed
    (scenario,) = json.loads((runs / "latest/drill.json").read_text())["scenarios"]
    assert (scenario["decision"], scenario["retrained"], scenario["promoted"]) == ("retrain", True, True)
    assert "auc" in scenario["columns_named"]
    assert scenario["collected_rows_trained_on"] > 10_000
    assert scenario["auc_promoted"] > scenario["auc_frozen"] > 0.5  # on later live rows


def test_a_world_that_does_not_break_is_no_drill(tmp_path: Path) -> None:
    with pytest.raises(ShortlistError, match="'drill': wanted data\\.source of kind generated with drifts"):
        drill(shorter(days=12), tmp_path / "runs")
