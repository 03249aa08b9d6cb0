"""One hostile client against everybody else: `make bench NAME=hostile`.

A stack serves users of a generated world, 25 requests/s by its backend. Two versions are rolled out in turn, first
without, then with a client that sends 200 requests/s as it likes, of which each gateway takes five
(`serving.limits.requests_per_second`). Nothing of it may send a version back, stop the next training, or make others
wait. The next model is trained twice: on all that was served, and without what the hostile client sent; both rank later
users of the world.

`OPTIONS="--seconds 60"` is a short form; it is not recorded.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import yaml

from benchmarks.attacks import REQUEST_IDS, Attacker, Input, as_input
from benchmarks.bench import Line, console, record, show
from benchmarks.targets import exit_code
from shortlist.contracts import Columns, Files, ShortlistError
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.deployment.local_deployer import LocalDeployer
from shortlist.evaluation.metrics.pointwise import auc
from shortlist.features.feast.feast_store_location import spec_feast_store_location
from shortlist.features.rows.table_rows import read_day
from shortlist.features.rows.transform import Transformer
from shortlist.ranking.saved_models import load_ranker
from shortlist.rollout.local.connection import StackConnection
from shortlist.rollout.local.stack import Stack
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.states.phases import Phase
from shortlist.runs.local_training import run_locally
from shortlist.runs.monitoring_runs import collect_locally
from shortlist.runs.runs_folder import open_runs_folder
from shortlist.serving.log.log_rows import encode_rows
from shortlist.serving.log.logs import item_type, outcome_columns, outcome_schema, prediction_schema
from shortlist.serving.log.serving_log import ServingLog, stream_folder
from shortlist.serving.traffic.background import run_replay
from shortlist.serving.traffic.client import Endpoint
from shortlist.serving.traffic.replay import LEDGER
from shortlist.serving.traffic.sessions import Sessions
from shortlist.spec.data import GeneratedSource, Live
from shortlist.spec.load import parse_spec
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import ReplayTraffic
from shortlist.spec.spec import Spec
from shortlist.spec.text.durations import parse_duration
from shortlist.storage.storage_config import StorageConfig
from shortlist.storage.tables import DayTable
from shortlist.tracking.run_context import RunContext

RATE: Final = 25.0
"""Requests of honest users per second."""
HOSTILE_RATE: Final = 200.0
ADDRESS_RATE: Final = 5
"""Requests per second that each gateway takes of an address without the backend's token."""
SECONDS: Final = 600.0
"""Length of the attack, and of the time without it before; a rollout that began is waited for."""
USERS: Final = 50
"""Users that the hostile client invents."""
LATER_DAYS: Final = 5
"""Days of the world whose users both models rank."""
WARM_SECONDS: Final = 10.0
"""Time after a start whose requests do not count."""
ROLLOUT_SECONDS: Final = 300.0
"""Longest time of a rollout."""
_THREADS: Final = 16
_ROWS_PER_DAY: Final = 3_500
_SESSIONS_PER_DAY: Final = 500
"""Fewest sessions of a day of so many rows."""
_SPEC: Final = Path(__file__).with_name("hostile.yaml")
TRAIN_DAYS: Final = 10
"""Days that the first models are trained on."""


class Outcome(NamedTuple):
    """Rollouts and requests of a served world, without and with the hostile client."""

    rollouts: Sequence[RolloutRecord]
    """Rollouts under attack."""
    sent: int
    """Requests of the hostile client."""
    ledger: pl.DataFrame
    """Answers and latencies of the honest requests."""
    begins: tuple[float, float, float]
    """Begin of the time without the attack, of the attack, and its end."""
    last_day: int
    """Number of the last day of the world whose users asked; not all of them did."""


class NextModel(NamedTuple):
    """The model that was trained on the collected rows."""

    trained: bool
    auc: float
    """Among later users of the world; not a number where nothing was trained."""


def hostile_spec(days: int, seed: int) -> Spec:
    """Return the spec with a world of so many days; another seed trains another version."""
    spec: dict[str, Any] = yaml.safe_load(_SPEC.read_text(encoding="utf-8"))
    spec["data"]["source"] |= {"rows": _ROWS_PER_DAY * days, "days": days}
    spec["models"]["xgboost"] |= {"rounds": 150}
    spec["gates"]["infra"] |= {"max_p50_ms": 5_000, "max_p99_ms": 10_000}
    spec["serving"]["limits"] = {"requests_per_second": ADDRESS_RATE}
    # Latencies of a busy machine are not looked at by the rollouts; they are measured here.
    spec["serving"]["canary"] |= {"deadline_seconds": ROLLOUT_SECONDS}
    spec["serving"]["canary"]["guardrails"] = {"max_p99_ms": 60_000, "latency_floor_ms": 60_000}
    spec["runtime"] = {"seed": seed}
    return parse_spec(yaml.safe_dump(spec))


class HostileClient(NamedTuple):
    """A hostile client, and what it knows of the stack and its users."""

    endpoint: Endpoint
    """Gateway of the stack."""
    items: list[int]
    label: str
    """Column of what users do."""
    context: dict[str, int | float | str]
    """Values of other columns, as an honest request has them."""
    moments: list[int]
    """Times of the honest requests in their order, in microseconds; it claims them too."""
    began: float
    """When the honest requests began, of the monotonic clock."""

    def inputs(self, user: str, rows: int) -> list[Input]:
        """Return the inputs of a request besides its items."""
        moment = self.moments[min(int(0.95 * RATE * (time.monotonic() - self.began)), len(self.moments) - 1)]
        return [
            as_input(Columns.TIME, [moment]),
            as_input("user_id", [int(user)]),
            as_input("impression_id", [random.getrandbits(62) for _ in range(rows)]),
            *(as_input(name, [value]) for name, value in self.context.items()),
        ]

    def run(self, rate: float, stop: Event, sent: Synchronized[int]) -> None:
        """Attack until it is time to stop, in a process of its own; `sent` is set to the number of requests."""
        _yield_processors()
        attacker = Attacker(self.endpoint, self.items, self.label, self.inputs)
        users = [f"{900_000 + number}" for number in range(USERS)]
        requests = (
            attacker.false_outcomes, attacker.wrong_request, attacker.aborted_request, attacker.same_items,
            attacker.long_header,
        )  # fmt: skip
        with attacker.attack(users, *requests, rate=rate, threads=_THREADS):
            stop.wait()
        sent.value = attacker.sent


def _yield_processors() -> None:
    """Let all other processes go first: a client would be on another machine."""
    os.setsid()
    os.nice(19)
    with suppress(OSError):  # Linux may share processors between sessions, and priorities then count within one
        Path("/proc/self/autogroup").write_text("19", encoding="ascii")


@contextmanager
def attacking(client: HostileClient, rate: float) -> Iterator[Synchronized[int]]:
    """Attack while the block runs; gives the number of requests, once it is over."""
    context = multiprocessing.get_context("spawn")
    stop, sent = context.Event(), context.Value("q", 0)
    process = context.Process(target=client.run, args=(rate, stop, sent))
    process.start()
    try:
        yield sent
    finally:
        stop.set()
        process.join()


def write_whole_log(spec: Spec, folder: Path) -> Path:
    """Generate all days of a spec's log, and return the folder of the valid one.

    Trainings never read it: they generate the first days again, and collect the others from served traffic.
    """
    # With `live.collect` the log would end where collecting begins.
    whole_log = spec.data.model_copy(update={"live": Live()})
    ingest(whole_log, folder, folder / "raw", spec.runtime)
    validate(whole_log, folder / "raw", folder / "log", folder / "quarantine", spec.runtime, datetime.now(UTC))
    return folder / "log"


def measure_served_auc(log: Path, days: frozenset[date], model: Path, fitted: Path, runtime: Runtime) -> float:
    """Return the AUC of a model on the rows of some days, with the statistics that it served.

    The views of a fit hold no later values. Rows of later days therefore get what the server had: the newest published
    value of each key.

    Args:
        log: Folder of a valid log with these days.
        days: Days to score.
        model: Model folder.
        fitted: Folder of the fit whose views were published.
        runtime: Section with the engine of the look-ups.

    Raises:
        UnmeasurableError: All rows have one label.
    """
    table = DayTable.open(log, Files.LOG)
    transformer = Transformer.load(fitted, runtime.engine, model / Files.PREPROCESSING)
    ranker, labels, scores = load_ranker(model), [], []
    for part in table.days:
        if part.day in days:
            for rows in read_day(table, part, transformer.plan):
                labels.append(rows[Columns.LABEL].to_numpy())
                scores.append(ranker.predict(transformer.compute(transformer.look_up(rows, part.day))))
    return auc(np.concatenate(labels), np.concatenate(scores))


class HostileWorld:
    """A spec that was trained twice on the first days of a generated world, and whose users come on the next ones.

    Args:
        folder: Folder for the world and the runs.
        days: Number of days of the world.
        report: Called with a line about each rollout and training.
    """

    def __init__(self, folder: Path, days: int, report: Callable[[str], object]) -> None:
        self.spec = hostile_spec(days, 1)
        assert isinstance(self.spec.data.source, GeneratedSource)
        self._source = self.spec.data.source
        self._log = write_whole_log(self.spec, folder / "world")
        self._folder, self._runs, self._report = folder, folder / "runs", report
        for seed in (1, 2):
            report(f"training version {seed}")
            until = self.start_of(TRAIN_DAYS)
            code = run_locally(hostile_spec(days, seed), None, self._runs, until=until)
            assert code == 0, f"{self._runs}/latest says why"
        self._stores = open_runs_folder(self._runs).stores
        self._context = RunContext(name=self.spec.name, stores=str(self._stores))
        sections = self.spec.serving, self.spec.gates, self.spec.runtime, self.spec.data.labels
        self.deployer = LocalDeployer(self._context, *sections)

    def start_of(self, number: int) -> datetime:
        """Return the moment at which a day of the world begins, counted from 0."""
        return datetime.combine(self._source.start + timedelta(days=number), datetime.min.time(), UTC)

    def serve(self, seconds: float) -> Outcome:
        """Serve honest users, roll versions out in turn, without and then with a hostile client."""
        stack, _ = self.deployer.serve()
        try:
            days = self._source.days - TRAIN_DAYS
            sessions = list(Sessions(self.spec.data, self._log, days))
            moments = [int(session.inputs[Columns.TIME][0]) for session in sessions]
            items = sorted({item for session in sessions for item in session.items or ()})
            traffic = ReplayTraffic(kind="replay", rate=RATE, days=days, outcome_delay_seconds=0.1)
            settings = StackConnection(self.deployer.context, stack).replay_settings(traffic)
            out = self._folder / "honest"
            endpoint = stack.backend_endpoint().model_copy(update={"token": None})
            context = {name: sessions[0].inputs[name][0].item() for name in ("position", "duration")}
            context |= {name: str(sessions[0].inputs[name][0]) for name in ("surface", "device")}
            began = time.monotonic()
            hostile = HostileClient(endpoint, items, self.spec.data.label, context, moments, began)
            with run_replay(settings.model_copy(update={"log": self._log, "out": out, "rounds": 1})):
                time.sleep(WARM_SECONDS)
                self._roll_out(stack, seconds)
                attack_began = time.monotonic()
                with attacking(hostile, HOSTILE_RATE) as sent:
                    rollouts = self._roll_out(stack, seconds)
                ended = time.monotonic()
        finally:
            stack.stop()
        ledger = pl.read_parquet(out / LEDGER)
        last = datetime.fromtimestamp(moments[ledger.height - 1] / 1e6, UTC)
        last_day = (last - self.start_of(0)).days
        return Outcome(rollouts, sent.value, ledger, (began + WARM_SECONDS, attack_began, ended), last_day)

    def _roll_out(self, stack: Stack, seconds: float) -> list[RolloutRecord]:
        """Roll the version out that does not serve, again and again for so long; return the records."""
        records: list[RolloutRecord] = []
        end = time.monotonic() + seconds
        while not records or time.monotonic() < end:
            route = stack.record.route
            assert route is not None
            records.append(self.deployer.canary(3 - route.stable))
            self._report(f"rollout of version {records[-1].state.candidate}: {records[-1].state.reason}")
        return records

    def train_next(self, last_day: int) -> NextModel:
        """Collect what was served, train on it, and rank later users of the world."""
        outcome_delay, registry = self.spec.data.live_outcome_delay, self._context.tracker.registry
        assert outcome_delay is not None
        time.sleep(parse_duration(outcome_delay) / timedelta(seconds=1) + 2)
        version_before = registry.version_of("candidate")
        try:
            self._report("\n".join(collect_locally(self.spec, self._runs).lines))
            code = run_locally(self.spec, None, self._runs, until=self.start_of(last_day))
        except ShortlistError as error:
            self._report(str(error))
            return NextModel(False, math.nan)
        version = registry.version_of("candidate")
        if code or version is None or version == version_before:
            return NextModel(False, math.nan)
        location = spec_feast_store_location(StorageConfig.parse(str(self._stores)), self.spec.name)
        fitted = Path(location.require_announcement()["views"]).parent
        days = frozenset(self.start_of(number).date() for number in range(last_day + 1, self._source.days))
        model = registry.fetch(version).folder
        return NextModel(True, measure_served_auc(self._log, days, model, fitted, self.spec.runtime))

    def forget_hostile_requests(self) -> int:
        """Leave the logs as they were without the hostile client, and nothing collected; return its logged answers."""
        log, paths = self.spec.data, self.deployer.paths
        answers = self._keep_honest(paths.predictions, prediction_schema(log))
        self._keep_honest(paths.outcomes, outcome_schema(item_type(log), outcome_columns(log)))
        shutil.rmtree(self._stores / "objects" / "collected" / self.spec.name)
        return answers

    def _keep_honest(self, folder: Path, schema: pa.Schema) -> int:
        log = ServingLog.on_disk(folder, schema)
        rows = log.read_all(schema.names)
        honest_rows = rows.filter(~pl.col("request_id").str.starts_with(REQUEST_IDS))
        for rewritten in (folder, stream_folder(folder)):
            shutil.rmtree(rewritten)
        stream = ServingLog.on_disk(folder, schema).open_stream()
        stream.append([encode_rows(honest_rows.to_arrow().cast(schema))]).result()
        stream.close()
        return rows.height - honest_rows.height


def lines_of(outcome: Outcome, models: tuple[NextModel, NextModel], hostile_answers: int) -> list[Line]:
    """Return the lines of the table.

    Args:
        outcome: Rollouts and requests.
        models: Models that were trained on all rows, and on those without the hostile client's.
        hostile_answers: Answers to the hostile client in the prediction log.
    """
    began, attack_began, ended = outcome.begins
    quiet, attacked = (
        _answers(outcome.ledger, *interval) for interval in ((began, attack_began), (attack_began, ended))
    )
    p99_ms = [float(np.percentile(latencies, 99)) * 1_000 for latencies, _ in (quiet, attacked)]
    returned = [record for record in outcome.rollouts if record.state.phase is not Phase.PROMOTED]
    attacked_model, honest_model = models
    seconds = ended - attack_began
    peer = "without the attack"
    return [
        Line("hostile", "hostile requests", round(outcome.sent / seconds, 1), "requests/s"),
        Line("hostile", "hostile requests, answered and logged", hostile_answers, "requests"),
        Line("hostile", "rollouts under attack", len(outcome.rollouts), "rollouts"),
        Line("hostile", "rollouts under attack, sent back", len(returned), "rollouts"),
        Line("hostile", "trainings stopped", [model.trained for model in models].count(False), "trainings"),
        Line("hostile", "AUC of the next model", round(attacked_model.auc, 4), "", f"{peer}: {honest_model.auc:.4f}"),
        Line(
            "hostile", "AUC of the next model, distance", round(abs(attacked_model.auc - honest_model.auc), 5), "", peer
        ),
        Line("hostile", "others, p99", round(p99_ms[1], 1), "ms", f"{peer}: {p99_ms[0]:.1f}", p99_ms[1] / p99_ms[0]),
        Line("hostile", "others, without an answer", attacked[1], "requests", f"{peer}: {quiet[1]}"),
    ]


def _answers(ledger: pl.DataFrame, began: float, ended: float) -> tuple[np.ndarray, int]:
    """Return the seconds of answers to requests that were due in an interval, and the number of the others."""
    due = ledger.filter(pl.col("due").is_between(began, ended))
    answered = due.filter(pl.col("status") == 200)
    return (answered["answered"] - answered["due"]).to_numpy(), due.height - answered.height


def measure(folder: Path, seconds: float, report: Callable[[str], object]) -> list[Line]:
    """Train, serve, attack and train again; return the lines."""
    live_days = math.ceil(2 * (seconds + ROLLOUT_SECONDS) * RATE / _SESSIONS_PER_DAY)
    world = HostileWorld(folder, TRAIN_DAYS + live_days + LATER_DAYS, report)
    outcome = world.serve(seconds)
    with_hostile = world.train_next(outcome.last_day)
    hostile_answers = world.forget_hostile_requests()
    return lines_of(outcome, (with_hostile, world.train_next(outcome.last_day)), hostile_answers)


def main() -> int:
    """Print and record; exit code 1 where the hostile client moved more than is asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    with TemporaryDirectory(prefix="shortlist-") as folder:
        lines = measure(Path(folder), options.seconds, console().print)
    show(f"One hostile client, {HOSTILE_RATE:g} requests/s against {RATE:g}", lines)
    if options.seconds >= SECONDS:
        record(lines)
    return exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
