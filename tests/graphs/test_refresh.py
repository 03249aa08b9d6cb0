"""The refresh graph: newer statistics for what serves, without a training."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from shortlist.contracts import ShortlistError
from shortlist.features.feast_store_location import SERVING
from shortlist.features.view_index import ViewIndex
from shortlist.runs.refresh_runs import refresh_arguments, refresh_is_due, run_refresh_locally
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.load import parse_spec
from shortlist.storage.artefacts import folder_digest, read_json
from shortlist.training.served_features import find_served_features
from shortlist.training.training import RunContext


def test_a_refresh_publishes_what_a_full_count_gives_and_trains_nothing(
    finished: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = parse_spec(yaml.safe_dump(finished.spec))
    (pointer,) = finished.runs.glob(f"**/{SERVING}")
    before, latest = read_json(pointer), (finished.runs / "latest").resolve()
    versions = folder_digest(Path(before["views"]))
    stores = read_json(finished.runs / "latest" / "arguments.json")["stores"]
    due = parse_spec(yaml.safe_dump({**finished.spec, "schedule": {"refresh": "* * * * *"}}))
    later = datetime.now(UTC) + timedelta(minutes=2)
    assert refresh_is_due(due, stores, later)
    assert not refresh_is_due(spec, stores, later)

    assert run_refresh_locally(spec, None, finished.runs) == 0

    after = read_json(pointer)
    assert after["published"] > before["published"]
    assert not refresh_is_due(due, stores, datetime.fromisoformat(after["published"]))
    assert folder_digest(Path(after["views"])) == versions  # the same rows, bit by bit the same values
    days = ViewIndex.read(Path(after["views"]))
    assert datetime.fromisoformat(after["counted_until"]) == days.start_of(days.last_day + timedelta(days=1))
    assert f"reads statistics of everything before {after['counted_until']}" in capfd.readouterr().out
    assert (finished.runs / "latest").resolve() == latest


def test_the_champions_own_features_are_refreshed(finished: Any) -> None:
    spec = parse_spec(yaml.safe_dump(finished.spec))
    stores = read_json(finished.runs / "latest" / "arguments.json")["stores"]
    origin = RunContext(name=spec.name, stores=stores)
    moved_on = spec.features.model_copy(update={"tile": "1h"})
    delayed = spec.data.model_copy(update={"outcome_delay": "1d"})
    served = find_served_features(origin, delayed, moved_on)
    assert Features.model_validate_json(served.features) == spec.features
    assert Data.model_validate_json(served.data) == spec.data
    assert served == find_served_features(origin, spec.data, spec.features)
    with pytest.raises(
        ShortlistError, match=r"spec 'other' has no champion whose features could be refreshed; make run"
    ):
        find_served_features(origin.model_copy(update={"name": "other"}), spec.data, spec.features)


def test_a_refresh_of_nothing_is_refused(finished: Any, tmp_path: Path) -> None:
    spec = parse_spec(yaml.safe_dump(finished.spec))
    with pytest.raises(ShortlistError, match="make run"):
        run_refresh_locally(spec, None, tmp_path / "runs")
    assert "models" not in refresh_arguments(spec, "", "{}")
