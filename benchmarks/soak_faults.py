"""Rollouts while parts of the system die, under steady sticky load.

Users ask at a steady rate. Versions are rolled out in turn by controllers in processes of their own. One fault after
another is done to the stack, in a random order that is repeated: a process is killed, the disk is full or slow. After
each one it is waited for until everything is ready again. What users lost is counted for each kind of fault, with
the longest time in which anybody was not answered. A client's connection ends with the Envoy that holds it: clients
send a request again, once and with its id, when its connection breaks; how many did so is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import polars as pl
import yaml

from benchmarks.bench import RESULTS, Line, console, record, show
from benchmarks.harm import Fault, Harm, Rollouts, do_harm
from benchmarks.soak import ROWS, small_spec
from shortlist.deployment.local_deployer import LocalDeployer
from shortlist.features.feast.feast_store_location import SERVING
from shortlist.rollout.local.stack import Stack
from shortlist.runs.local_training import run_locally
from shortlist.runs.runs_folder import open_runs_folder
from shortlist.serving.traffic.client import Endpoint, connect
from shortlist.serving.traffic.ledger import LedgerEntry
from shortlist.serving.traffic.load import DueRequest, Load
from shortlist.serving.traffic.sessions import Sessions
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import read_json
from shortlist.tracking.run_context import RunContext

_TRIES: Final = 3
RATE: Final = 40.0
"""Requests per second."""


@dataclass(frozen=True)
class Loss:
    """What users lost by one kind of fault."""

    name: str
    times: int
    requests: int
    """Asked while it lasted."""
    lost: int
    """Not answered, or with a server's error."""
    worst: int
    """Lost by one of them."""
    outage_seconds: float
    """Longest time from the first lost request to the last one."""
    slowest_seconds: float
    """Of an answer."""
    resent: int
    """Requests that were sent a second time because their connection broke."""


def losses(ledger: pl.DataFrame, faults: list[Fault]) -> list[Loss]:
    """Return what each kind of fault cost, by name.

    A request belongs to the fault during which it was due, or failed.

    Args:
        ledger: Columns `due`, `answered`, `status` and `resent` of all requests.
        faults: In the order of time.
    """
    is_lost = (pl.col("status") <= 0) | (pl.col("status") >= 500)
    intervals_by_fault: dict[str, list[tuple[int, int, float, float, int]]] = {}
    for fault in faults:
        during = ledger.filter(pl.col("due").is_between(fault.began, fault.ended))
        failed_in = ledger.filter(is_lost, pl.col("answered").is_between(fault.began, fault.ended))
        failed = pl.concat([during.filter(is_lost), failed_in]).unique()
        outage = float(failed["answered"].max() - failed["due"].min()) if failed.height else 0.0  # type: ignore[operator]
        slowest = during.filter(~is_lost).select((pl.col("answered") - pl.col("due")).max()).item() or 0.0
        intervals_by_fault.setdefault(fault.name, []).append(
            (during.height, failed.height, outage, slowest, during["resent"].sum())
        )
    return [
        Loss(
            name=name,
            times=len(intervals),
            requests=sum(interval[0] for interval in intervals),
            lost=sum(interval[1] for interval in intervals),
            worst=max(interval[1] for interval in intervals),
            outage_seconds=max(interval[2] for interval in intervals),
            slowest_seconds=max(interval[3] for interval in intervals),
            resent=sum(interval[4] for interval in intervals),
        )
        for name, intervals in sorted(intervals_by_fault.items())
    ]


@contextmanager
def asking(endpoint: Endpoint, spec: Spec, log: Path, ledger: Path, rate: float) -> Iterator[Synchronized[int]]:
    """Ask at a steady rate while the block runs, in a process of its own; gives the count of scored requests so far."""
    context = multiprocessing.get_context("spawn")
    stop, count = context.Event(), context.Value("q", 0)
    process = context.Process(target=_ask, args=(endpoint, spec, log, ledger, rate, stop, count))
    process.start()
    try:
        yield count
    finally:
        stop.set()
        process.join()


def _ask(
    endpoint: Endpoint, spec: Spec, log: Path, ledger: Path, rate: float, stop: Event, count: Synchronized[int]
) -> None:
    asyncio.run(_run_load(endpoint, spec, log, ledger, rate, stop, count))


async def _run_load(
    endpoint: Endpoint, spec: Spec, log: Path, ledger: Path, rate: float, stop: Event, count: Synchronized[int]
) -> None:
    sessions = list(Sessions(spec.data, log, 2, ROWS))
    async with connect(endpoint) as client:
        prepared = [(client.prepare(session.inputs), session.user) for session in sessions]
        asks = (
            DueRequest(request, f"soak-{number}", user)
            for number, (request, user) in enumerate(itertools.cycle(prepared))
        )

        def note(ledger_entry: LedgerEntry, _: object) -> None:
            count.value += ledger_entry.status == 200

        load_summary = await Load(client, asks, stop=stop.is_set, on_answer=note).run_open(rate, max_under_way=20_000)
    load_summary.frame().write_parquet(ledger)


def soak(folder: Path, replicas: int, seconds: float, rate: float, seed: int) -> tuple[list[Loss], pl.DataFrame, int]:
    """Train, serve, ask, roll out and do harm; return what was lost, the ledger and how many rollouts ended."""
    runs, printing, chance = folder / "runs", console(), random.Random(seed)
    for number in (1, 2):
        with printing.status(f"training version {number}"):
            assert run_locally(small_spec(number), None, runs) == 0, f"{runs}/latest says why"
    spec = _with_replicas(small_spec(1), replicas)
    spec_file = folder / "soak.yaml"
    spec_file.write_text(yaml.safe_dump(spec.model_dump(mode="json")), encoding="utf-8")
    context = RunContext(name=spec.name, stores=str(open_runs_folder(runs).stores))
    deployer = LocalDeployer(context, spec.serving, spec.gates, spec.runtime)
    stack = _served(deployer)
    try:
        log = Path(read_json(open_runs_folder(runs).stores / "feast" / spec.name / SERVING)["log"])
        rollouts = Rollouts(deployer, spec_file, runs, (1, 2))
        harm = Harm(deployer, rollouts, chance)
        endpoint = stack.backend_endpoint().model_copy(update={"resend": True})
        with asking(endpoint, spec, log, folder / "ledger.parquet", rate) as count:
            while count.value < rate:
                time.sleep(0.1)
            with rollouts.running():
                faults = do_harm(harm, seconds, chance, printing.print)
    finally:
        stack.stop()
    ledger = pl.read_parquet(folder / "ledger.parquet")
    return losses(ledger, faults), ledger, rollouts.ended


def _served(deployer: LocalDeployer) -> Stack:
    """Return a stack with a champion; on a busy machine the proof of the first one may need another try."""
    for _ in range(_TRIES):
        stack, rollout = deployer.serve()
        if stack.record.route is not None:
            return stack
    stack.stop()
    raise AssertionError(f"no version serves: {rollout.state.reason if rollout else 'no rollout'}")


def _with_replicas(spec: Spec, replicas: int) -> Spec:
    # How long anybody may wait on a machine that is kept busy on purpose is not what is looked for here.
    overload = spec.serving.overload.model_copy(update={"max_wait_ms": 60_000, "max_waiting": 10_000})
    return spec.model_copy(
        update={"serving": spec.serving.model_copy(update={"replicas": replicas, "overload": overload})}
    )


def main() -> int:
    """Print the table and write the results; exit code 1 when two replicas lost anything by one process' death."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600, help="of faults; every kind is done once at least")
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="shortlist-") as folder:
        measured_losses, ledger, ended = soak(
            Path(folder), arguments.replicas, arguments.seconds, arguments.rate, arguments.seed
        )
    lines = lines_of(measured_losses, ledger, ended, arguments.replicas)
    show(f"{ledger.height:,} requests, {arguments.replicas} replica(s)", lines)
    record(lines, RESULTS.with_name("soak_faults.json"))
    return int(arguments.replicas > 1 and any(loss.lost for loss in measured_losses))


def lines_of(measured_losses: list[Loss], ledger: pl.DataFrame, ended: int, replicas: int) -> list[Line]:
    """Return the lines of the table."""
    work, lines = f"soak with faults, {replicas} replica(s)", []
    for loss in measured_losses:
        lines += [
            Line(work, f"{loss.name}: lost", loss.lost, f"of {loss.requests} requests, {loss.times} times"),
            Line(work, f"{loss.name}: lost, most by one", loss.worst, "requests"),
            Line(work, f"{loss.name}: sent again", loss.resent, "requests whose connection broke"),
            Line(work, f"{loss.name}: outage, longest", round(loss.outage_seconds, 2), "s"),
            Line(work, f"{loss.name}: slowest answer", round(loss.slowest_seconds, 2), "s"),
        ]
    lost = int(((ledger["status"] <= 0) | (ledger["status"] >= 500)).sum())
    lines.append(Line(work, "all: lost", lost, f"of {ledger.height} requests"))
    lines.append(Line(work, "rollouts that ended", ended, "rollouts"))
    return lines


if __name__ == "__main__":
    sys.exit(main())
