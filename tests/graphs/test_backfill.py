"""The backfill graph: a corrected rule changes the served features, after the changes were reported."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from shortlist.contracts import ShortlistError
from shortlist.features.feast.feast_store_location import SECOND_SLOT, SERVING
from shortlist.features.fits.backfill import parse_range
from shortlist.features.fits.previous_fit import DayRange
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.runs.refresh_runs import run_backfill_locally
from shortlist.spec.load import parse_spec
from shortlist.storage.artefacts import folder_digest, read_json

pytestmark = pytest.mark.long


def test_a_corrected_rule_is_looked_at_and_then_published_and_taken_back(
    finished: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    (pointer,) = finished.runs.glob(f"**/{SERVING}")
    pointer_before = read_json(pointer)
    views, digest = ViewIndex.read(Path(pointer_before["views"])), folder_digest(Path(pointer_before["views"]))
    all_days, first = DayRange(views.first_day, views.last_day), DayRange(views.first_day, views.first_day)
    corrected = copy.deepcopy(finished.spec)
    (position,) = (column for column in corrected["data"]["columns"] if column["name"] == "position")
    position["max"] = 8
    corrected["data"]["rules"] = {**corrected["data"].get("rules", {}), "max_quarantined_share": 0.9}
    rule, old = parse_spec(yaml.safe_dump(corrected)), parse_spec(yaml.safe_dump(finished.spec))

    with pytest.raises(ShortlistError, match=rf"day\(s\) outside {first} have changed too: .*; backfill {first.first}"):
        run_backfill_locally(rule, None, finished.runs, first, publish=False)

    assert run_backfill_locally(rule, None, finished.runs, all_days, publish=False) == 0
    printed = capfd.readouterr().out
    assert read_json(pointer) == pointer_before
    changes = read_json(finished.runs / "backfill" / rule.name / "changes.json")
    assert len(changes["days"]) == 8
    assert all(
        day["counted_again"] and 0 < day["rows_after"] < day["rows_before"]
        and day["quarantined_after"] == day["rows_before"] - day["rows_after"] and day["quarantined_before"] == 0
        for day in changes["days"]
    )  # fmt: skip
    assert "by_user_id:rows changes for" in printed
    assert "Version 1 (xgboost, champion) reads " in printed
    assert printed.endswith("Nothing is published. The same command with --publish serves it.\n")
    assert "user_rate" in changes["read_by"][0]["features"]

    assert run_backfill_locally(rule, None, finished.runs, all_days, publish=True) == 0
    pointer_after = read_json(pointer)
    assert "unchanged, reused" in capfd.readouterr().out  # what was looked at is what is published
    assert (pointer_after["slot"], folder_digest(Path(pointer_after["views"])) == digest) == (SECOND_SLOT, False)

    assert run_backfill_locally(old, None, finished.runs, all_days, publish=True) == 0
    assert "slot" not in read_json(pointer)
    assert folder_digest(Path(read_json(pointer)["views"])) == digest  # bit by bit what it was


def test_a_backfill_of_nothing_is_refused(finished: Any, tmp_path: Path) -> None:
    spec = parse_spec(yaml.safe_dump(finished.spec))
    with pytest.raises(ShortlistError, match="make run"):
        run_backfill_locally(spec, None, tmp_path / "runs", parse_range("2026-01-01", "2026-01-02"), publish=True)
