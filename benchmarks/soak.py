"""Two hundred thousand requests across promotions and rollbacks, and none lost.

Two versions of one spec, trained by its pipeline, are rolled out in turn while closed-loop users ask through Envoy as
fast as the machine answers. Every second rollout is taken back by hand half way. Three books are kept independently and
compared by request id at the end: the client's ledger, Envoy's access logs, the servers' prediction log.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
from rich.console import Console

from benchmarks.bench import Line, console, record, show
from benchmarks.targets import exit_code
from shortlist.deployment.local_deployer import LocalDeployer
from shortlist.features.feast.feast_store_location import SERVING
from shortlist.rollout.local.envoy.bootstrap import ENVOYS
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.states.phases import Phase
from shortlist.runs.local_training import run_locally
from shortlist.runs.runs_folder import open_runs_folder
from shortlist.serving.log.logs import prediction_schema
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.traffic.client import Endpoint, connect
from shortlist.serving.traffic.load import DueRequest, Load
from shortlist.serving.traffic.sessions import Sessions
from shortlist.spec.load import load_spec
from shortlist.spec.serving import Serving
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import read_json
from shortlist.tracking.run_context import RunContext

REQUESTS = 200_000
WORKERS = 16
ROWS = 8
"""Most rows of a request."""
SMALL = {"rows": 30_000, "users": 2_000, "items": 300, "days": 4}
POLICY = {
    "steps": [10, 50, 100], "interval_seconds": 3, "min_requests": 50, "min_users": 10, "deadline_seconds": 120,
    # Both versions are good, and a machine that is kept busy on purpose says nothing about them.
    "kpi": {"max_drop": 0.9}, "guardrails": {"max_p99_ms": 20_000, "max_latency_ratio": 100},
}  # fmt: skip


def small_spec(seed: int) -> Spec:
    """The demo with fewer rows and one model; another seed trains another version."""
    spec = load_spec(Path(__file__).parents[1] / "pipelines" / "specs" / "demo.yaml")
    baselines = {name: model for name, model in spec.models.items() if model.role == "baseline"}
    trees = spec.models["xgboost"].model_copy(update={"rounds": 100, "learning_rate": 0.2, "refit": False})
    source = spec.data.source.model_copy(update=SMALL)
    limits = {"min_test_rows": 500, "min_auc": 0.55, "max_auc_drop": 0.1, "slices": ()}
    calm = {"max_calibration_error": 0.3, "max_rate_error": 1.0, "skew_rows": 50, "parity_rows": 2_000}
    infra = spec.gates.infra.model_copy(update={"seconds": 1, "max_p50_ms": 5_000, "max_p99_ms": 20_000})
    return spec.model_copy(
        update={
            "name": "soak",
            **dict.fromkeys(("retrieval", "filters", "ordering")),  # clients bring their candidates
            "data": spec.data.model_copy(update={"source": source}),
            "models": {"xgboost": trees, **baselines},
            "gates": spec.gates.model_copy(update={**limits, **calm, "infra": infra}),
            "runtime": spec.runtime.model_copy(update={"seed": seed}),
            "serving": Serving.model_validate({"canary": POLICY, "traffic": {"kind": "replay", "rate": 20}}),
        }
    )


@contextmanager
def asking(endpoint: Endpoint, spec: Spec, log: Path, ledger: Path) -> Iterator[Synchronized[int]]:
    """Ask while the block runs, in a process of its own; gives the count of answers so far."""
    context = multiprocessing.get_context("spawn")
    stop, count = context.Event(), context.Value("q", 0)
    process = context.Process(target=ask, args=(endpoint, spec, log, ledger, stop, count))
    process.start()
    try:
        yield count
    finally:
        stop.set()
        process.join()


def ask(endpoint: Endpoint, spec: Spec, log: Path, ledger: Path, stop: Event, count: Synchronized[int]) -> None:
    """Ask in a closed loop until it is time to stop; write the ledger, its times as those of the wall clock."""
    asyncio.run(_ask(endpoint, spec, log, ledger, stop, count))


async def _ask(endpoint: Endpoint, spec: Spec, log: Path, ledger: Path, stop: Event, count: Synchronized[int]) -> None:
    sessions = list(Sessions(spec.data, log, 2, ROWS))
    async with connect(endpoint) as client:
        prepared = [(client.prepare(session.inputs), session.user) for session in sessions]
        repeated = enumerate(itertools.cycle(prepared))
        asks = (DueRequest(request, f"soak-{number}", user) for number, (request, user) in repeated)

        def note(*_: object) -> None:
            count.value += 1

        load_summary = await Load(client, asks, stop=stop.is_set, on_answer=note).run_closed(WORKERS)
    wall = time.time() - time.monotonic()
    load_summary.frame().with_columns(pl.col("sent", "answered") + wall).write_parquet(ledger)


def roll_out_in_turn(
    deployer: LocalDeployer, versions: tuple[int, int], count: Synchronized[int], rollout_count: int
) -> list[RolloutRecord]:
    """Roll out the version that does not serve, again and again, every second time half way; return what happened."""
    records: list[RolloutRecord] = []
    with ThreadPoolExecutor(1) as pool:
        while count.value < rollout_count or len(records) < 2:
            previous = deployer.rollouts.latest()
            assert previous is not None
            serves = previous.state.stable
            rollout = pool.submit(deployer.canary, min(set(versions) - {serves}))
            if len(records) % 2:
                while not rollout.done() and not is_at_half(deployer, previous):
                    time.sleep(0.1)
                time.sleep(2)
                if not rollout.done():
                    deployer.rollback()
            records.append(rollout.result())
    return records


def is_at_half(deployer: LocalDeployer, previous: RolloutRecord) -> bool:
    """Whether the newest rollout sends half of the users to its candidate."""
    now = deployer.rollouts.latest()
    assert now is not None
    return now.id != previous.id and (now.state.phase, now.state.percent) == (Phase.WATCHING, 50)


class SoakRecords:
    """What the client, Envoy and the servers wrote down.

    Args:
        deployer: Of the stack; it is stopped, so that all is written.
        spec: Names the type of the items.
        ledger: The client's.
    """

    def __init__(self, deployer: LocalDeployer, spec: Spec, ledger: Path) -> None:
        self.ledger_rows = pl.read_parquet(ledger)
        is_own = pl.col("id").str.starts_with("soak-")
        kinds = {name: pl.String() for name in ("id", "track", "rollout", "step")} | {"status": pl.Int64()}
        files = [deployer.paths.logs / f"{name}.access.jsonl" for name in ENVOYS]
        self.lines = pl.concat([pl.read_ndjson(file, schema=kinds) for file in files]).filter(is_own)
        log = ServingLog.on_disk(deployer.paths.predictions, prediction_schema(spec.data))
        logged = log.read_all(["status", "request_id"])
        self.logged = logged.select("status", id="request_id").filter(is_own, pl.col("status") == 200)

    def counts(self) -> dict[str, int]:
        """Return requests, and what does not agree between the books; every one but the first should be 0."""
        answered = self.ledger_rows.filter(pl.col("status") == 200).select("id")
        failed = self.ledger_rows.filter((pl.col("status") <= 0) | (pl.col("status") >= 500))
        tracks = failed.join(self.lines.unique("id"), on="id", how="left", suffix="_routed")["track_routed"]
        good = self.lines.filter(pl.col("status") == 200).select("id")
        return {
            "requests": self.ledger_rows.height,
            "failed_stable": int((tracks.fill_null("stable") != "canary").sum()),
            "failed_canary": int((tracks == "canary").sum()),
            "refused": int(self.ledger_rows["status"].is_between(201, 499).sum()),
            "lost": answered.join(self.logged, on="id", how="anti").height,
            "doubled": self.logged.height - self.logged["id"].n_unique(),
            "not_in_access_log": answered.join(good, on="id", how="anti").height,
            "twice_in_access_log": good.height - good["id"].n_unique(),
            "logged_unasked": self.logged.join(answered, on="id", how="anti").height,
        }

    def seconds_to_effect(self, records: list[RolloutRecord]) -> tuple[list[float], list[float]]:
        """Return seconds from every new weight, and from every verdict to go back, to the last request of the old way.

        Both moments are those that the controller wrote down before it did anything about them.
        """
        routes = self.lines.select("id", "rollout", "step", "track")
        sent = self.ledger_rows.select("id", "sent").join(routes, on="id").with_columns(pl.col("step").cast(pl.Int32))
        shifts, backs = [], []
        for rollout_record in records:
            of_rollout = sent.filter(pl.col("rollout") == rollout_record.id)
            moments = [datetime.fromisoformat(change.time).timestamp() for change in rollout_record.history]
            # A new way lasts from one change to the next but one: shifting, watching, and what comes then.
            ends = [*moments[2:], math.inf, math.inf]
            for change, moment, end in zip(rollout_record.history, moments, ends, strict=True):
                if change.phase is Phase.SHIFTING:
                    meanwhile = sent.filter(pl.col("sent").is_between(moment, end))
                    shifts.append(_since(meanwhile.filter(_precedes(rollout_record.id, change.step))["sent"], moment))
                elif change.phase in {Phase.ROLLING_BACK, Phase.ABORTING}:
                    sent_after_rollback = of_rollout.filter(pl.col("track") == "canary", pl.col("sent") >= moment)
                    backs.append(_since(sent_after_rollback["sent"], moment))
        return shifts, backs


def _precedes(rollout: str, step: int) -> pl.Expr:
    if step == 0:
        return pl.col("rollout").is_null()
    return (pl.col("rollout") == rollout) & (pl.col("step") < step)


def _since(moments: pl.Series, moment: float) -> float:
    return max(0.0, float(moments.max()) - moment) if moments.len() else 0.0  # type: ignore[arg-type]


def soak(folder: Path, printing: Console, request_count: int) -> tuple[SoakRecords, list[RolloutRecord], float]:
    """Train, serve, ask and roll out; return the books, the rollouts and the seconds."""
    runs = folder / "runs"
    for seed in (1, 2):
        with printing.status(f"training version {seed}"):
            assert run_locally(small_spec(seed), None, runs) == 0, f"{runs}/latest says why"
    spec = small_spec(1)
    deployer = LocalDeployer(
        RunContext(name=spec.name, stores=str(open_runs_folder(runs).stores)), spec.serving, spec.gates, spec.runtime
    )
    stack, _ = deployer.serve()
    try:
        log = Path(read_json(open_runs_folder(runs).stores / "feast" / spec.name / SERVING)["log"])
        began = time.monotonic()
        with asking(stack.backend_endpoint(), spec, log, folder / "ledger.parquet") as count:
            records = roll_out_in_turn(deployer, (1, 2), count, request_count)
        seconds = time.monotonic() - began
    finally:
        stack.stop()
    return SoakRecords(deployer, spec, folder / "ledger.parquet"), records, seconds


def main() -> int:
    """Print the table and write the results; exit code 1 when anything was lost, or took too long."""
    request_count = int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS
    printing = console()
    with TemporaryDirectory(prefix="shortlist-") as folder:
        books, records, seconds = soak(Path(folder), printing, request_count)
        counts = books.counts()
        shifts, backs = books.seconds_to_effect(records)
    wrong = {name: number for name, number in counts.items() if name != "requests"}
    ends = [rollout_record.state.phase for rollout_record in records]
    assert shifts, "no weight was changed"
    assert backs, "nothing was taken back"
    shift, back = statistics.median(shifts), statistics.median(backs)
    figures = (
        *((name.replace("_", " "), number, "requests") for name, number in wrong.items()),
        ("requests", counts["requests"], "requests"),
        ("duration", round(seconds, 1), "s"),
        ("promotions", ends.count(Phase.PROMOTED), "rollouts"),
        ("rollbacks", len(ends) - ends.count(Phase.PROMOTED), "rollouts"),
        ("new weight to effect, median", round(shift, 3), "s"),
        ("new weight to effect, most", round(max(shifts), 3), "s"),
        ("verdict to 0 %, median", round(back, 3), "s"),
        ("verdict to 0 %, most", round(max(backs), 3), "s"),
    )
    lines = [Line("soak", name, value, unit) for name, value, unit in figures]
    show(f"{counts['requests']:,} requests in {seconds:.0f} s", lines)
    record(lines)
    return int(any(wrong.values()) or counts["requests"] < request_count) or exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
