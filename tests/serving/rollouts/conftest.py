"""A stack of real servers with users of its own, and what must hold after whatever happened to it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest

from shortlist.deployment.local_deployer import LocalDeployer
from shortlist.rollout.evidence.access_log import SCHEMA
from shortlist.rollout.local.lifecycle import stop_stack
from shortlist.rollout.local.stack import Stack
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.states.phases import Phase
from shortlist.rollout.verdict import EVIDENCE, RolloutVerdict
from shortlist.serving.log.logs import prediction_schema
from shortlist.serving.log.serving_log import ServingLog, stream_folder
from shortlist.serving.paths import ServingPaths
from shortlist.serving.processes.orphan_processes import orphan_processes
from shortlist.serving.traffic.background import replay_folder
from shortlist.serving.traffic.client import Endpoint, connect
from shortlist.serving.traffic.ledger import Ledger
from shortlist.serving.traffic.load import DueRequest, Load
from shortlist.serving.traffic.replay import LEDGER
from shortlist.serving.traffic.sessions import Session, Sessions
from shortlist.spec.log_shape import FurtherLabel
from shortlist.spec.serving import Serving
from shortlist.storage.artefacts import read_json

USERS_RATE = 15
"""Requests per second of the users that are there whatever happens to a rollout's own replay."""
ENVOYS = ("envoy-a", "envoy-b")
PATIENCE_SECONDS = 180.0
"""Longest wait for what happens within seconds on an idle machine: how busy this one is says nothing of the code."""
_UNKNOWN_SECONDS = 0.25
"""Who sends on a connection whose other end was gone for less than this, on a busy machine, cannot know of it yet."""
_LINES_LATER_SECONDS = 1.0
"""Envoy writes its access log every 0.2 s, when it gets its turn."""


class Users:
    """Sticky users who go on asking while the block runs, and what they saw."""

    def __init__(self, endpoint: Endpoint, sessions: list[Session], rate: float) -> None:
        self._endpoint = endpoint
        self._sessions, self._rate = sessions, rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._ask()))
        self.ledger = Ledger()

    def __enter__(self) -> Users:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    async def _ask(self) -> None:
        name = uuid.uuid4().hex[:8]
        async with connect(self._endpoint) as client:
            prepared = [(client.prepare(session.inputs), session.user) for session in self._sessions]
            asks = (
                DueRequest(request, f"user-{name}-{number}", user)
                for number, (request, user) in enumerate(itertools.cycle(prepared))
            )
            await Load(client, asks, stop=self._stop.is_set, ledger=self.ledger).run_open(self._rate)


@dataclass(frozen=True)
class Kill:
    """A process that was killed: freeing its memory takes the system a while before it closes its connections."""

    program: str
    sent: float
    """Seconds of the system's monotonic clock, which the ledgers use."""
    ended: float


@dataclass
class Story:
    """What happened in one test: who asked, what was killed when, which rollouts ran."""

    users: Users
    kills: list[Kill] = field(default_factory=list)
    replays: list[pl.DataFrame] = field(default_factory=list)
    """Ledgers of rollouts' own traffic."""
    access_begins: dict[str, int] = field(default_factory=dict)
    """Bytes of each Envoy's access log that were there before."""


class Live:
    """The stack, and ways to do to it what a machine may do."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.paths = ServingPaths.for_spec(world.runs, world.spec.name)
        self.deployer = self.deployer_with({}, {})
        self._pool = ThreadPoolExecutor(1)
        self._sessions = list(itertools.islice(Sessions(world.spec.data, world.log, 2, 10), 400))
        self._commands: list[subprocess.Popen[str]] = []
        self._running_rollouts: list[Future[RolloutRecord]] = []
        self.story: Story | None = None
        self.started: RolloutRecord | None = None

    def serve(self) -> None:
        """Bring the stack up: the first model ever reaches everybody."""
        self.started = self.deployer.serve()[1]

    # Asking for things.

    def deployer_with(
        self, serving: dict[str, Any], canary: dict[str, Any], labels: Mapping[str, FurtherLabel] | None = None
    ) -> LocalDeployer:
        """Return a deployer whose spec says something else in places, and has further labels."""
        spec = self.world.spec
        policy = spec.serving.canary.model_dump() | canary
        changed = Serving.model_validate(spec.serving.model_dump() | serving | {"canary": policy})
        return LocalDeployer(self.world.origin, changed, spec.gates, spec.runtime, labels)

    def begin(self, version: int, deployer: LocalDeployer | None = None) -> Future[RolloutRecord]:
        """Roll a version out in the background; return when its record is there."""
        latest_before = self.deployer.rollouts.latest()
        rollout = self._pool.submit((deployer or self.deployer).canary, version)
        self._running_rollouts.append(rollout)
        self.until(lambda: rollout.done() or self.deployer.rollouts.latest() != latest_before, "no rollout began")
        return rollout

    def roll_out(self, version: int, deployer: LocalDeployer | None = None) -> RolloutRecord:
        """Roll a version out to its end."""
        return self.end(self.begin(version, deployer))

    def end(self, rollout: Future[RolloutRecord]) -> RolloutRecord:
        """Return a rollout when it is over; its own traffic goes to the books."""
        record = rollout.result(2 * PATIENCE_SECONDS)
        self.keep_replay()
        return record

    def keep_replay(self) -> None:
        """Put the traffic of the last rollout to the books."""
        path = replay_folder(self.paths.root) / LEDGER
        assert self.story is not None
        if path.exists():
            # In one go: a replay whose controller was killed may put its own in the place of this one.
            self.story.replays.append(pl.read_parquet(path.read_bytes()))
            path.unlink()

    def command(self, *arguments_given: str, runs: Path | None = None) -> subprocess.Popen[str]:
        """Start `shortlist ... SPEC --runs RUNS` in a process of its own."""
        spec_arguments = str(self.world.spec_file), "--runs", str(runs or self.world.runs)
        program = "from shortlist.cli import main; main()"
        process = subprocess.Popen(
            [sys.executable, "-c", program, arguments_given[0], *spec_arguments, *arguments_given[1:]],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3],
            env={**os.environ, "COLUMNS": "200"},
        )  # fmt: skip
        self._commands.append(process)
        return process

    def recommended(self, request_id: str, k: int, user: int = 5) -> tuple[dict[str, str], dict[str, list[Any]]]:
        """Return the headers of a slate that Envoy's port gives, and its outputs by name."""
        numbers = {"k": k, "user_id": user}
        inputs = [{"name": name, "datatype": "INT64", "shape": [1], "data": [value]} for name, value in numbers.items()]
        token = self.stack.backend_endpoint().token
        headers = {"x-request-id": request_id, "x-shortlist-user": str(user), "authorization": f"Bearer {token}"}
        address = f"{self.stack.url}/v2/models/{self.world.spec.name}.recommend/infer"
        body = json.dumps({"inputs": inputs}).encode()
        request = urllib.request.Request(address, body, headers)  # noqa: S310 - our own server
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own server
            answered = json.loads(answer.read())
        return dict(answer.headers), {value["name"]: value["data"] for value in answered["outputs"]}

    # Looking.

    @property
    def stack(self) -> Stack:
        """The stack that is up."""
        stack = Stack.connect(self.paths)
        assert stack is not None
        return stack

    @property
    def champion(self) -> int:
        """The version that serves."""
        route = self.stack.record.route
        assert route is not None
        return route.stable

    @property
    def other_version(self) -> int:
        """The good version that does not serve."""
        good = {self.world.versions["first"], self.world.versions["second"]}
        return min(good - {self.champion})

    def record(self) -> RolloutRecord:
        """Return the newest rollout."""
        latest = self.deployer.rollouts.latest()
        assert latest is not None
        return latest

    def reaches(self, phase: Phase, percent: int | None = None, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the newest rollout is in a phase."""

        def is_reached() -> bool:
            state = self.record().state
            assert state.phase is phase or not state.final, f"{state.phase}: {state.reason}"
            return state.phase is phase and percent in {None, state.percent}

        self.until(is_reached, f"phase {phase}", seconds)

    def until(
        self, holds: Callable[[], bool], otherwise: str, seconds: float = PATIENCE_SECONDS, pause_seconds: float = 0.1
    ) -> None:
        """Wait until something holds; looking costs the servers time, so look seldom."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"{otherwise}; the newest rollout: {self.deployer.rollouts.latest()}"
            time.sleep(pause_seconds)

    def evidence(self, record: RolloutRecord) -> RolloutVerdict:
        """Return what a rollout left for programs."""
        return RolloutVerdict.model_validate(read_json(self.deployer.rollouts.rollout_folder(record.id) / EVIDENCE))

    def rolled_back(self, record: RolloutRecord, reason: str) -> RolloutVerdict:
        """Return the evidence of a rollout that was rolled back for a reason, and harmed nobody on the stable track."""
        evidence = self.evidence(record)
        assert evidence.verdict == "rolled_back"
        assert re.search(reason, evidence.reason), evidence.reason
        assert (evidence.requests.stable.failed, evidence.requests.lost) == (0, 0)
        assert self.champion == evidence.champion
        return evidence

    def failed_checks(self, record: RolloutRecord) -> list[str]:
        """Return the names of the checks that failed at the judge's last look."""
        last = record.steps[-1].last
        assert last is not None
        return [check.name for check in last.checks if check.passed is False]

    def access(self) -> pl.DataFrame:
        """Return this test's whole lines of Envoy's access logs, of both; the last line may be half written."""
        assert self.story is not None
        schema = {**SCHEMA, "version": pl.String(), "flags": pl.String(), "time": pl.String()}
        texts = [self._access_log(name).read_bytes()[begin:] for name, begin in self.story.access_begins.items()]
        lines = [text[: text.rfind(b"\n") + 1] for text in texts]
        return pl.concat(
            [pl.DataFrame(schema=schema), *(pl.read_ndjson(BytesIO(log_lines), schema=schema) for log_lines in lines)]
        )

    def _access_log(self, name: str) -> Path:
        return self.paths.logs / f"{name}.access.jsonl"

    def predictions(self, *columns: str) -> pl.DataFrame:
        """Return columns of the prediction log since shortly before the test; all of them take four times as long."""
        schema = prediction_schema(self.world.spec.data)
        return ServingLog.on_disk(self.paths.predictions, schema).read_all(columns or schema.names)

    def answered(self, version: int) -> int:
        """Return how often a version has answered."""
        answers = self.access().filter(pl.col("version") == str(version), pl.col("status") == 200)
        return answers.height

    def problems(self) -> list[str]:
        """Return what status complains of, besides what is over: restarts, and answers that a log had no room for."""
        past_problems = "had to be started again", "it is written again"
        return [
            problem
            for problem in self.stack.status().problems
            if not any(pattern in problem for pattern in past_problems)
        ]

    def pid(self, program: str) -> int:
        """Return the process of a program."""
        process = self.stack._supervisor.process(program)
        assert process.pid is not None
        return process.pid

    # Doing harm.

    def kill(self, program: str) -> int:
        """Kill a program as the system would when memory is short; return its process."""
        return self.kill_process(self.pid(program), program)

    def kill_process(self, pid: int, program: str) -> int:
        """Kill a process that belongs to a program, and note when."""
        assert self.story is not None
        process, sent = psutil.Process(pid), time.monotonic()
        process.kill()
        process.wait(30)
        self.story.kills.append(Kill(program, sent, time.monotonic()))
        return pid

    def backend_of(self, version: int) -> int:
        """Return the process in which a version's Triton runs the model."""
        children = psutil.Process(self.pid(f"triton-v{version}")).children(recursive=True)
        return next(child.pid for child in children if child.name().startswith("triton_python"))

    def comes_back(self, program: str, former_pid: int) -> None:
        """Wait until a killed program serves again."""

        def back() -> bool:
            process = self.stack._supervisor.processes().get(program)
            return process is not None and process.pid not in {None, former_pid} and not self.problems()

        self.until(back, f"{program} does not come back: {self.problems()}")

    # What must hold.

    @contextmanager
    def visited(self, rate: float = USERS_RATE) -> Iterator[Story]:
        """Let users ask while the block runs; afterwards they were served, and another rollout can begin."""
        with Users(self.stack.backend_endpoint(), self._sessions, rate) as users:
            sizes = {name: self._access_log(name).stat().st_size for name in ENVOYS}
            self.story = Story(users, access_begins=sizes)
            try:
                yield self.story
                self.until(lambda: int(users.ledger.answered.sum()) > 10, "nobody was really there")
            finally:
                self._tidy()
        assert users.ledger.lost == 0
        assert self.failed_stable() == []
        self.restore()

    def _tidy(self) -> None:
        """End what a test that failed left under way, so that the next one says something of its own."""
        for command in self._commands:
            command.kill()
            command.communicate()
        self._commands.clear()
        if self.deployer.rollouts.unfinished() is not None:
            self.deployer.rollback()
        # A rollout's own traffic ends with the call that began it.
        wait(self._running_rollouts, PATIENCE_SECONDS)
        self._running_rollouts.clear()

    def restore(self) -> None:
        """Pass when a champion serves alone, status has no more to say, and no controller is in the way."""
        assert self.problems() == []
        record, rollouts = self.stack.record, self.deployer.rollouts
        route = record.route
        assert route is not None
        assert (route.canary, route.percent, route.rollout) == (None, 0, None)
        assert self.world.origin.tracker.registry.version_of("champion") == route.stable
        assert rollouts.unfinished() is None
        assert not rollouts.is_locked()
        assert set(record.versions) == {route.stable}
        programs = {"supervisord", "log-committer", *ENVOYS, f"triton-v{route.stable}", f"server-v{route.stable}"}
        assert set(orphan_processes(self.paths.programs)) == programs
        assert [
            process for process in self.processes() if "shortlist.serving.traffic" in " ".join(process.cmdline())
        ] == []

    def processes(self) -> list[psutil.Process]:
        """Return every process that works for this stack, whoever its parent is."""
        process_list = []
        for process in psutil.process_iter():
            try:
                command_line, working_folder = " ".join(process.cmdline()), Path(process.cwd())
            except (psutil.Error, OSError):  # gone, or a zombie
                continue
            if str(self.paths.root) in command_line or working_folder.is_relative_to(self.paths.root):
                process_list.append(process)
        return process_list

    def failed_stable(self) -> list[dict[str, Any]]:
        """Return the requests of the stable track that failed as their own clients saw it, in this test.

        Left out are those that a process had in hand when the test killed it: sent before the process was gone, broken
        off after the kill. Of a server, Envoy's line says besides that its connection ended before its answer (UC) or
        in the middle of it (UPE); of an Envoy there is no line.
        """
        assert self.story is not None
        ledgers = [self.story.users.ledger.frame(), *self.story.replays]
        columns = ["id", "user", "track", "status", "sent", "answered", "error"]
        requests = pl.concat([ledger.select(columns) for ledger in ledgers])
        # Those under way have no status yet; whether any is left at the end is looked at elsewhere.
        failed = requests.filter((pl.col("status") == 0) | (pl.col("status") >= 500))
        if failed.is_empty():
            return []
        time.sleep(_LINES_LATER_SECONDS)
        lines = self.access().select("id", "flags", routed="track").unique("id")
        failed = failed.join(lines, on="id", how="left").filter(pl.col("routed").fill_null("stable") != "canary")
        return failed.filter(~pl.any_horizontal(pl.lit(False), *map(_in_hand, self.story.kills))).to_dicts()

    def close(self) -> None:
        """Let go of the thread that runs rollouts."""
        self._pool.shutdown()


def _in_hand(kill: Kill) -> pl.Expr:
    """Whether a failed request was under way on a process when it was killed."""
    # Envoy's line tells when an answer began, not when it broke off: only its client knows that.
    is_under_way = (pl.col("sent") <= kill.ended + _UNKNOWN_SECONDS) & (pl.col("answered") >= kill.sent)
    if kill.program in ENVOYS:
        return is_under_way & pl.col("routed").is_null() & (pl.col("status") == 0)
    if not kill.program.startswith("server"):
        return pl.lit(False)  # a server asks its Triton again: nothing may fail
    return (is_under_way & pl.col("flags").is_in(["UC", "UPE"])).fill_null(False)


_DISK_BYTES = 256 * 2**20


@pytest.fixture(scope="session")
def stack_up(world: Any) -> Iterator[Live]:
    """The stack, up for all tests, its streams of predictions on a disk of their own; nothing is left afterwards."""
    live = Live(world)
    streams = stream_folder(live.paths.predictions)
    streams.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "shortlist-test", str(streams)]
    is_mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0  # not without the rights
    try:
        live.serve()
        yield live
    finally:
        stop_stack(live.paths)
        live.close()
        assert orphan_processes(live.paths.programs) == {}
        assert live.processes() == []
        if is_mounted:
            subprocess.run(["umount", "-l", str(streams)], check=True)  # noqa: S607


@pytest.fixture
def full_stream_disk(stack_up: Live) -> Callable[[], Any]:
    """Return a context manager under which the disk with the streams of predictions has no room."""

    @contextmanager
    def full() -> Iterator[None]:
        streams = stream_folder(stack_up.paths.predictions)
        if not streams.is_mount():
            pytest.skip("a full disk needs a file system of its own, which cannot be mounted")
        filler = streams / "filler"
        try:
            with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
                while file.write(bytes(4096)):
                    pass
            yield
        finally:
            filler.unlink()

    return full


@pytest.fixture
def live(stack_up: Live) -> Iterator[Live]:
    """The stack with users; after the test, they were served, and everything is as before but for who is champion."""
    with stack_up.visited():
        yield stack_up
