"""The benchmark of events and scores measures what is asked, and its results are where programs look for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bench import RESULTS
from benchmarks.targets import TARGETS

pytestmark = pytest.mark.long

WANTED = {
    "kills survived", "acknowledged requests lost by kills",
    "request to score, p50", "request to score, p99", "outcome to score, p50", "outcome to score, p99",
    "events kept and counted on one core, requests of 20 rows",
    "events kept and counted on one core, requests of 1 row",
}  # fmt: skip
PROGRAM = """
import json, sys
from pathlib import Path
from benchmarks.freshness import measured
print(json.dumps([line._asdict() for line in measured(Path(sys.argv[1]), kills=2, probes=2, events=2_200)]))
"""


def check(entries: list[dict[str, Any]]) -> None:
    """Check that every figure that is asked of the benchmark is among some entries."""
    assert {entry["name"] for entry in entries} >= WANTED
    asked = [target for target in TARGETS if target.program == "freshness"]
    assert len(asked) == 3 and all(target.select(entries) for target in asked)


def test_it_kills_servers_and_measures_all_targets(tmp_path: Path) -> None:
    # It forks itself, so it runs in a process that has no threads.
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    entries = json.loads(done.stdout)
    check(entries)
    values = {entry["name"]: entry["value"] for entry in entries}
    assert (values["kills survived"], values["acknowledged requests lost by kills"]) == (2, 0)
    assert values["request to score, p50"] >= 0.5  # features.streaming.delay


def test_the_newest_results_hold_its_figures() -> None:
    entries = json.loads(RESULTS.read_text())
    check([entry for entry in entries if entry["work"] == "freshness"])
