"""How often the judge errs, how soon it finds faults, and how fast it reads.

Rollouts are played in memory with the default policy, looked at every two seconds, on one process per core. The reading
speed is that of real access logs, prediction and outcome logs of 200 000 requests on disk.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson
import psutil
import pyarrow as pa
from rich.console import Console

from benchmarks.bench import Line, console, cost, record, show
from benchmarks.targets import exit_code
from shortlist.rollout.checks.analysis import analyze_step
from shortlist.rollout.checks.health import Health
from shortlist.rollout.evidence.access_log import ACCESS_LOG, AccessLog, rollout_requests
from shortlist.rollout.evidence.reader import EvidenceReader
from shortlist.rollout.evidence.sequential import mixture_radius
from shortlist.serving.log.log_rows import encode_rows
from shortlist.serving.log.logs import outcome_schema, prediction_schema
from shortlist.serving.log.serving_log import stream_folder
from shortlist.serving.paths import ServingPaths
from shortlist.spec.data import Data
from shortlist.spec.serving import KPI, Canary, Guard
from shortlist.storage.append_log.writer import AppendLog
from tests.simulation.analysis_simulation import Faults, SimulatedRollout, SimulatedTraffic, play

REQUESTS = 200_000
POLICY = Canary()
GUARDED = Canary(guards={"like": Guard(max_drop=0.05), "long_view": Guard(max_relative_drop=0.3)})
LOG = Data.model_validate(
    {
        "source": {"kind": "generated"},
        "columns": [{"name": "item_id", "type": "integer"}, {"name": "is_click", "type": "integer"}],
        "label": "is_click",
        "item": "item_id",
        "clock": {"kind": "column", "column": "event_time", "unit": "iso"},
    }
)


@dataclass(frozen=True)
class Case:
    """A kind of rollout."""

    name: str
    rollouts: int
    faults: Faults = field(default_factory=Faults)
    world: SimulatedTraffic = field(default_factory=SimulatedTraffic)
    found_by: str = ""
    """The check that should roll it back; empty for one that should be promoted."""
    policy: Canary = POLICY


CASES = (
    Case("equally good", 1_000),
    Case("equally good, KPI 0.05", 200, world=SimulatedTraffic(kpi=0.05, taste=0.03)),
    Case("equally good, KPI 0.85", 200, world=SimulatedTraffic(kpi=0.85, taste=0.1)),
    Case("equally good, KPI falls 0.05 a step", 200, world=SimulatedTraffic(kpi_drift=-0.05)),
    Case("equally good, 1 000 users", 200, world=SimulatedTraffic(users=1_000, taste=0.2)),
    Case("equally good, 10 % of users send what is refused", 200, world=SimulatedTraffic(mistaken_users=0.1)),
    Case("5 % of requests refused", 100, Faults(refusals=0.05), found_by="refusals"),
    Case("40 % of slates empty", 100, Faults(empty_slates=0.4), found_by="slates"),
    Case("KPI drop 0.15", 100, Faults(kpi_drop=0.15), found_by="kpi"),
    Case("KPI drop 0.10", 100, Faults(kpi_drop=0.10), found_by="kpi"),
    Case("KPI drop 0.05, the most allowed", 100, Faults(kpi_drop=0.05), found_by="kpi"),
    Case("equally good, two guards", 200, policy=GUARDED),
    Case("guarded labels fall by 0.09 of 0.1", 100, Faults(further_drop=0.09), found_by="guard", policy=GUARDED),
    Case("error rate 5 %", 100, Faults(error_rate=0.05), found_by="errors"),
    Case("error rate 2 %", 100, Faults(error_rate=0.02), found_by="errors"),
    Case("10 x slower", 100, Faults(slowdown=10), found_by="latency"),
    Case("NaN in 5 %", 100, Faults(nan_rate=0.05), found_by="scores"),
    Case("constant scores", 100, Faults(constant=True), found_by="scores"),
    Case("scores shifted by 2 deviations", 100, Faults(score_shift=2), found_by="distribution"),
    Case("30 % of its users lost", 100, Faults(lost_users=0.3), found_by="split"),
)


def played(case: Case, seed: int) -> SimulatedRollout:
    """Play one rollout of a kind."""
    return play(case.policy, case.world, case.faults, seed)


def whole_judge(printing: Console) -> list[Line]:
    """Play every kind; return how it ends, by which check, and when."""
    lines = []
    with multiprocessing.get_context("spawn").Pool() as pool:
        for case in CASES:
            with printing.status(case.name):
                ends = pool.map(partial(played, case), range(case.rollouts), chunksize=5)
            checks = Counter(end.check or "deadline" for end in ends if end.decision == "roll_back")
            undecided = checks.pop("deadline", 0)
            named = [count for check, count in checks.items() if check.startswith(case.found_by)]
            detected = sum(named)  # of all checks where none should find anything
            detection = f"found by {case.found_by}" if case.found_by else "called faulty"
            seconds = np.quantile([end.seconds for end in ends], [0.5, 0.95])
            shares = {detection: detected, "undecided": undecided, "rolled back otherwise": checks.total() - detected}
            # Undecided is not an error of a test, and no success: the users there are cannot rule out a drop.
            lines += [
                Line("analyze_step", f"{case.name}: {description}", round(count / case.rollouts, 5), "share")
                for description, count in shares.items()
            ]
            lines += [
                Line("analyze_step", f"{case.name}: {part} of rollouts end within", round(float(quantile), 1), "s")
                for part, quantile in zip(("half", "95 %"), seconds, strict=True)
            ]
    return lines


def sequential_against_repeated(rollouts: int = 20_000, users: int = 2_000, looks: int = 100) -> list[Line]:
    """Return how often each test calls equally good models worse, and the sequential one's power.

    Every user of both tracks has one outcome, with a rate of 0.3 on the stable track.
    """
    generator, kpi, lines = np.random.default_rng(1), KPI(), []
    for drop, user_count in ((0.0, users), (0.15, 400), (0.1, 800), (0.05, 3_000), (0.03, 10_000)):
        size = user_count // looks * np.arange(1, looks + 1)
        user_means = [
            generator.binomial(user_count // looks, rate, (rollouts, looks)).cumsum(axis=1) / size
            for rate in (0.3 - drop, 0.3)
        ]
        estimate = user_means[0] - user_means[1]
        variance = sum((mean * (1 - mean) + 0.5 / size) / size for mean in user_means)
        sequential = float((estimate + mixture_radius(variance, kpi.alpha, kpi.scale) < 0).any(axis=1).mean())
        repeated = float((estimate + 1.96 * variance**0.5 < 0).any(axis=1).mean())
        name = f"KPI test alone, drop {drop:g}, {user_count} users per track, {looks} looks: called worse"
        peer = f"95 % z-test at every look: {repeated:.3f}"
        lines.append(Line("analyze_step", name, round(sequential, 5), "share", peer, round(sequential / repeated, 4)))
    return lines


def write_logs(paths: ServingPaths) -> None:
    """Write what Envoy, two servers and users would have written of 200 000 requests with 20 items each."""
    generator, users = np.random.default_rng(2), 20_000
    user, step = generator.integers(0, users, REQUESTS), np.arange(REQUESTS) * 4 // REQUESTS
    canary = generator.random(users)[user] < np.array(POLICY.steps)[step] / 100
    paths.logs.mkdir(parents=True)
    line = {"time": "2026-11-21T03:34:00.123456Z", "rollout": "r", "path": "/v2/models/demo/infer", "version": "3"}
    constant_fields = {"sender": "backend", "protocol": "HTTP/1.1", "status": 200, "grpc": None, "flags": None}
    with (paths.logs / f"envoy-a{ACCESS_LOG}").open("wb") as file:
        for number in range(REQUESTS):
            track = "canary" if canary[number] else "stable"
            request_fields = {"id": f"request-{number:032d}", "user": f"user-{user[number]}", "track": track}
            file.write(
                orjson.dumps(
                    {**line, **constant_fields, **request_fields, "step": str(step[number]), "us": 5_000 + number % 999}
                )
                + b"\n"
            )
    for track in ("stable", "canary"):
        track_rows = np.flatnonzero(canary == (track == "canary"))
        for rows in np.array_split(track_rows, 200):
            _append_records(paths, track, rows, user[rows], step[rows], generator)


def _append_records(
    paths: ServingPaths, track: str, rows: Any, user: Any, step: Any, generator: np.random.Generator
) -> None:
    scores = generator.beta(2, 5, (rows.size, 20)).astype(np.float32)
    common = {
        "time": datetime.now(UTC),
        "track": track,
        "rollout": "r",
        "sender": "backend",
        "version": 3,
        "status": 200,
        "digest": "0" * 16,
    }
    request_ids = [
        {**common, "request_id": f"request-{row:032d}", "user": f"user-{user_number}", "step": at, "latency_ms": 4.0}
        | {"degraded": False, "items": list(range(20)), "scores": answer}
        for row, user_number, at, answer in zip(
            rows.tolist(), user.tolist(), step.tolist(), scores.tolist(), strict=True
        )
    ]
    outcomes = [
        {
            "time": common["time"],
            "request_id": request_id["request_id"],
            "item": 0,
            "row": int(best),
            "label": int(label),
        }
        for request_id, best, label in zip(
            request_ids, scores.argmax(axis=1), generator.random(rows.size) < 0.3, strict=True
        )
    ]
    for folder, schema, lines in (
        (paths.predictions, prediction_schema(LOG), request_ids),
        (paths.outcomes, outcome_schema(pa.int64()), outcomes),
    ):
        stream = AppendLog(stream_folder(folder) / f"stream-{int(track == 'canary'):03d}")
        stream.append([encode_rows(pa.Table.from_pylist(lines, schema=schema))]).result()
        stream.close()


def reading() -> list[Line]:
    """Return how fast evidence is read and judged."""
    with TemporaryDirectory() as scratch:
        paths = ServingPaths.for_spec(Path(scratch), "demo")
        write_logs(paths)
        log = AccessLog(paths.logs / f"envoy-a{ACCESS_LOG}")
        peak_rows: list[int] = []
        lines = seconds(lambda: peak_rows.extend(len(rollout_requests(part, "r")) for part in log.read()))
        assert sum(peak_rows) == REQUESTS, f"{sum(peak_rows)} of {REQUESTS} lines"
        resident_before = _resident_mib()
        reader = EvidenceReader(paths, "r", len(POLICY.steps), kpi=KPI())
        poll, second_poll = seconds(reader.poll), seconds(reader.poll)
        snapshot = min(seconds(reader.snapshot) for _ in range(5))
        evidence = reader.snapshot()
        verdict = min(seconds(lambda: analyze_step(evidence, POLICY, 3, 30, Health(ready=True))) for _ in range(20))
        grown = _resident_mib() - resident_before
    figures = (
        ("access log, read and filtered", REQUESTS / lines, "lines/s"),
        (f"first poll of {REQUESTS} requests with scores and outcomes, 800 records", poll, "s"),
        ("poll with nothing new", second_poll * 1000, "ms"),
        (f"snapshot of {REQUESTS} requests of 20000 users", snapshot * 1000, "ms"),
        (f"analyze_step() on {REQUESTS} requests", verdict * 1000, "ms"),
        (f"memory of a reader after {REQUESTS} requests", grown, "MiB"),
    )
    return [Line("analyze_step", name, round(value, 5), unit) for name, value, unit in figures]


def seconds(work: Callable[[], object]) -> float:
    """Return how long it took."""
    return cost(work).wall_s


def _resident_mib() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20


def main() -> int:
    """Print the tables and write the results; exit code 1 when too many good canaries are called faulty."""
    printing = console()
    with printing.status("reading"):
        lines = reading() + sequential_against_repeated()
    show("KPI test, reading", lines)
    whole = whole_judge(printing)
    show(f"Rollouts, steps {list(POLICY.steps)}, a look every 2 s", whole)
    record(lines + whole)
    return exit_code(whole)


if __name__ == "__main__":
    sys.exit(main())
