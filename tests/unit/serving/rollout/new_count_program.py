"""Declares a further count of requests, takes an access log to the end of a rollout, and prints where the count is.

Its argument is an empty folder. The count is declared in a copy of the module of counts, by one more line.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path

MODULE = "shortlist.rollout.evidence.counts"
NEXT_LINE = "    answered: int = request_count"
LINE = "    slow: int = request_count(pl.col('us') > 50_000)\n"


def declare_count() -> None:
    """Import the module of counts with one more count."""
    spec = importlib.util.find_spec(MODULE)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text()
    assert source.count(NEXT_LINE) == 1
    sys.modules[MODULE] = types.ModuleType(MODULE)
    exec(compile(source.replace(NEXT_LINE, LINE + NEXT_LINE), spec.origin, "exec"), vars(sys.modules[MODULE]))  # noqa: S102


def show_count(folder: Path) -> None:
    """Print where the count of an access log appears."""
    from rich.console import Console

    from shortlist.rollout.checks.analysis_observer import AnalysisObserver
    from shortlist.rollout.checks.health import Health
    from shortlist.rollout.evidence.reader import EvidenceReader
    from shortlist.rollout.page import render
    from shortlist.rollout.record import RolloutRecord
    from shortlist.rollout.states.phases import Phase, RolloutState
    from shortlist.rollout.terminal import verdict_table
    from shortlist.rollout.verdict import make_verdict
    from shortlist.serving.paths import ServingPaths
    from shortlist.spec.serving import KPI, Canary

    paths = ServingPaths.for_spec(folder, "demo")
    paths.logs.mkdir(parents=True)
    line = {
        "rollout": "r1",
        "step": "0",
        "path": "/v2/models/demo/infer",
        "status": 200,
        "user": "u",
        "sender": "backend",
    }
    lines = [
        {**line, "id": str(number), "track": "canary" if number % 3 else "stable", "us": 9_000 * number}
        for number in range(12)
    ]
    (paths.logs / "envoy-a.access.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    policy = Canary.model_validate({"checks": {"slow_answers": {"breach": "canary_slow > 3"}}})
    observer = AnalysisObserver(EvidenceReader(paths, "r1", 1, KPI()), policy, lambda: Health(ready=True, version=2))
    state = RolloutState(rollout="r1", candidate=2, former=1, champion=1, stable=1, steps=(100,), phase=Phase.WATCHING)
    record = RolloutRecord(spec="demo", state=state, kind="dlrm", digest="0123456789abcdef", policy=policy)
    record = record.with_state(state).with_observation(observer.observe_step(0, 1.0))
    over = state.model_copy(update={"phase": Phase.ROLLED_BACK})
    record = RolloutRecord.model_validate_json(record.model_dump_json())  # as another process reads it
    record = record.model_copy(update={"requests": observer.total(), "state": over})
    observation = record.steps[0].last
    assert observation is not None
    console = Console(width=200)
    with console.capture() as terminal:
        console.print(verdict_table(record))
    places = {
        "evidence": make_verdict(record).model_dump(mode="json")["requests"],
        "step": observation.model_dump(mode="json")["canary"]["slow"],
        "check": [check.passed for check in observation.checks if check.name == "slow_answers"],
        "page": 'slow</th><td class="num">2</td><td class="num">4</td>' in render(record),
        "terminal": "slow 2 / 4" in terminal.get(),
    }
    sys.stdout.write(json.dumps(places))


if __name__ == "__main__":
    declare_count()
    show_count(Path(sys.argv[1]))
