"""Random requests to the stages of a spec, `make bench NAME=simulate_slates OPTIONS="demo --requests 100000"`.

The sources are fitted as a run fits them, and slates are made by the classes that a server uses, with random scores in
place of a model's. Every run makes `retrieval.simulated_requests` of these; this makes as many as are wanted. Ends with
status 1 if a slate breaks a filter or a rule of the order, or was not as likely as its propensities say.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench import Line, record, show
from shortlist.contracts import Files
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.evaluation.gates.slates import SimulatedRequests
from shortlist.serving.validation.slates import read_requests
from shortlist.slates import step as releasing
from shortlist.slates.release import open_release
from shortlist.slates.retrieval import step as retrieving
from shortlist.slates.simulation import simulate_requests
from shortlist.spec.filters import Filters
from shortlist.spec.load import load_spec
from shortlist.spec.ordering import Ordering
from shortlist.spec.split import split_days
from shortlist.storage.tables import DayTable

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Build the stages, make the requests, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spec", help="name of a shipped spec")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--data", type=Path, help="the user's files; none for a generated log")
    arguments = parser.parse_args()
    with TemporaryDirectory() as scratch:
        simulated_requests, cpu_s = simulated(arguments.spec, arguments.data, arguments.requests, Path(scratch))
    lines = [
        Line("simulation", f"{arguments.spec}, requests", simulated_requests.requests, ""),
        Line("simulation", f"{arguments.spec}, without an item", simulated_requests.empty, ""),
        Line("simulation", f"{arguments.spec}, broken", simulated_requests.broken, ""),
        Line("simulation", f"{arguments.spec}, a request", 1_000 * cpu_s / simulated_requests.requests, "cpu-ms"),
    ]
    show("Simulated requests", lines)
    record(lines)
    sys.exit("; ".join(simulated_requests.examples) or 0)


def simulated(name: str, log_path: Path | None, requests: int, scratch: Path) -> tuple[SimulatedRequests, float]:
    """Return what became of random requests to a spec's stages, and the processor seconds that they took."""
    spec = load_spec(ROOT / f"pipelines/specs/{name}.yaml")
    if spec.retrieval is None:
        sys.exit(f"{name} declares no retrieval; there are no slates to simulate")
    raw, valid, quarantine, sources, out = (scratch / part for part in ("raw", "valid", "quarantine", "sources", "out"))
    ingest(spec.data, log_path, raw, spec.runtime)
    validate(spec.data, raw, valid, quarantine, spec.runtime, datetime.now(UTC))
    retrieving.build_retrieval(spec.retrieval, spec.data, valid, sources, spec.runtime.seed)
    stages = spec.filters or Filters(), spec.ordering or Ordering()
    source = str(log_path) if log_path else ""
    releasing.build_release(sources / retrieving.RELEASE, spec.data, *stages, valid, source, out)
    recommender = open_release(out / releasing.RELEASE, spec.data)
    log = DayTable.open(valid, Files.LOG)
    test = frozenset(split_days(log.rows_by_day, spec.data).test)
    logged_requests = read_requests(recommender, spec.data, log, test, spec.runtime.seed)
    began = time.process_time()
    simulated_requests = simulate_requests(recommender, logged_requests.requests, requests, spec.runtime.seed)
    return simulated_requests, time.process_time() - began


if __name__ == "__main__":
    main()
