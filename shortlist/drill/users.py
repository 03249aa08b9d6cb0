"""The users of a drill: they ask the gateway for slates, answer what they see, and go on while versions roll out."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import numpy as np
import orjson
import polars as pl

from shortlist.client import Event, ShortlistClient
from shortlist.contracts import Columns, ShortlistError
from shortlist.data.world.answering_world import SENT_COLUMNS, AnsweringWorld, Requests
from shortlist.data.world.random_streams import Ints
from shortlist.data.world.traffic import SLOTS
from shortlist.deployment.local_deployer import LocalDeployer
from shortlist.drill.world import DrillWorld
from shortlist.loop.in_process_release import DayHistories, InProcessRelease
from shortlist.loop.policies import FROZEN, LOOP, slate_matrix
from shortlist.loop.policy_rewards import PolicyDay, measure_policies
from shortlist.rollout.local.stack import Stack
from shortlist.rollout.states.phases import Phase
from shortlist.serving.log.log_follower import LogFollower
from shortlist.serving.log.logs import ANSWER_SCHEMA
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.server.requests.headers import REQUEST_ID_HEADER, USER_HEADER, recommend_model
from shortlist.serving.server.requests.paths import inference_path
from shortlist.serving.traffic.inputs import as_array
from shortlist.serving.traffic.requests import prepare
from shortlist.spec.spec import Spec
from shortlist.tracking.run_context import RunContext

SLATES_PER_DAY: Final = 1_000
"""Expected slates of a day on which three in ten seen items are clicked."""
MAX_FAILED_SHARE: Final = 0.1
"""Largest share of a day's requests that may get no slate; each user then sees nothing, and comes back."""
_CONCURRENT_REQUESTS: Final = 8
_TIMEOUT_SECONDS: Final = 30.0
_REQUESTS_PER_REPORT: Final = 100
"""Most requests whose answers are awaited before events tell what users did with them."""
_MAX_STEP_SECONDS: Final = 20.0
"""Longest wait, after a day was played, for the step of the rollout to end."""
_POLL_SECONDS: Final = 0.2
_MAX_LOG_SECONDS: Final = 60.0
"""Longest wait for the answers to appear in the prediction log."""
_CANARY_PHASES: Final = frozenset({Phase.SHIFTING, Phase.WATCHING})
"""Phases in which some users get the candidate."""


@dataclass
class _PlayedDay:
    """What users asked for on a day, and the slates that they got and would have got, part by part."""

    requests: list[Requests] = field(default_factory=list)
    slates: list[Ints] = field(default_factory=list)
    frozen_slates: list[Ints] = field(default_factory=list)


class DrillUsers:
    """The users of a drill's world before its gateway.

    Args:
        deployer: The spec's deployer; its stack is running when the first day is played.
        run: Stores of the drill, with the registry of versions.
        world: The world.
        spec: The spec.
        first_day: Number of the first day to play.
        slates_per_day: See `SLATES_PER_DAY`.
    """

    def __init__(
        self, deployer: LocalDeployer, run: RunContext, world: DrillWorld, spec: Spec, first_day: int,
        slates_per_day: int = SLATES_PER_DAY,
    ) -> None:  # fmt: skip
        self._deployer, self._run, self._world, self._spec = deployer, run, world, spec
        self._users = AnsweringWorld(world.source, slates_per_day, first_day)
        self._frozen: InProcessRelease | None = None
        self.next_day = first_day
        """Number of the next day to play."""
        self.rewards: list[PolicyDay] = []
        """What all policies earned on the days so far."""

    def play_day(self, number: int) -> None:
        """Let users ask for a day, and send what they did as events.

        Raises:
            ShortlistError: The stack is not running, more than a tenth of the day's requests got no slate, events are
                refused, or the answers are not logged.
        """
        stack = self._stack()
        champion = self._champion()
        if self._frozen is None:
            self._frozen = champion
        log = LogFollower(ServingLog.on_disk(self._deployer.paths.predictions, ANSWER_SCHEMA), ["track"])
        _count_logged(log)  # what was logged before
        failures: Counter[str] = Counter()
        day = asyncio.run(self._play(stack, number + 1.0, self._frozen, failures))
        self.next_day = number + 1
        if not day.requests:
            return
        requests, failed = Requests.concatenate(day.requests), failures.total()
        request_count = requests.user.size
        if failed > MAX_FAILED_SHARE * request_count:
            (reason, count), *_ = failures.most_common(1)
            raise ShortlistError(
                f"{stack.url}: {failed:,} of {request_count:,} requests of a day got no slate, {count:,} of them"
                f" because of {reason}; see the servers' logs in {self._deployer.paths.logs}"
            )
        shown = {LOOP: np.concatenate(day.slates), FROZEN: np.concatenate(day.frozen_slates)}
        self.rewards += measure_policies(self._users, number, requests, shown, champion.stages.retriever)
        self._wait_for_log(log, request_count - failed)

    def _stack(self) -> Stack:
        stack = Stack.connect(self._deployer.paths)
        if stack is None:
            raise ShortlistError(f"{self._deployer.paths.root}: the stack of the drill is not up")
        return stack

    def _champion(self) -> InProcessRelease:
        version = self._run.tracker.registry.version_of("champion")
        if version is None:
            raise ShortlistError(f"spec '{self._run.name}': no version serves, so that users have nothing to see")
        return InProcessRelease.open(self._run, version, self._spec.data)

    async def _play(self, stack: Stack, until: float, frozen: InProcessRelease, failures: Counter[str]) -> _PlayedDay:
        """Return the requests of a day with the slates that the gateway answered; users reacted to each."""
        endpoint = stack.backend_endpoint()
        headers = {"authorization": f"Bearer {endpoint.token}", "content-type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        day, seen_today = _PlayedDay(), DayHistories()
        async with aiohttp.ClientSession(stack.url, headers=headers, timeout=timeout) as session:
            with ShortlistClient(stack.url, _TIMEOUT_SECONDS, endpoint.token) as client:
                while (asking := self._users.ask(until)).user.size:
                    for requests in asking.split(_REQUESTS_PER_REPORT):  # events must not come too late to count
                        sent = requests.frame(self._world.source)
                        slates = await self._ask_for_slates(session, endpoint.model, sent, failures)
                        answers = frozen.answer(frozen.slate_requests(sent, SENT_COLUMNS, seen_today))
                        events = self._users.answer(requests, slates)
                        await asyncio.to_thread(self._send_events, client, events)
                        seen_today.add(events.filter("seen"))
                        day.requests.append(requests)
                        day.slates.append(slates)
                        day.frozen_slates.append(slate_matrix([answer.slate.items for answer in answers], SLOTS))
        return day

    async def _ask_for_slates(
        self, session: aiohttp.ClientSession, model: str, sent: pl.DataFrame, failures: Counter[str]
    ) -> Ints:
        """Return the items of the slates, shape (requests, places); no items, and a failure, where there is no answer.

        Args:
            session: Connections to the gateway.
            model: Name of the model.
            sent: What the requests send.
            failures: Reasons are counted here.
        """
        free_slots = asyncio.Semaphore(_CONCURRENT_REQUESTS)
        path, item = inference_path(recommend_model(model)), self._spec.data.item
        assert item is not None
        names = [name for name in (Columns.TIME, self._spec.data.user, *SENT_COLUMNS) if name in sent.columns]
        columns = {name: self._input_values(sent[name]) for name in names}

        async def ask(row: int) -> pl.Series:
            inputs = {name: values[row : row + 1] for name, values in columns.items()} | {"k": np.array([SLOTS])}
            body = prepare(inputs, "json", recommend_model(model), output=item).body
            headers = {REQUEST_ID_HEADER: _request_id(sent["request_id"][row]), USER_HEADER: str(sent["user_id"][row])}
            async with free_slots:
                return pl.Series(await self._post(session, path, body, headers, failures), dtype=pl.Int64)

        return slate_matrix(await asyncio.gather(*map(ask, range(sent.height))), SLOTS)

    async def _post(
        self, session: aiohttp.ClientSession, path: str, body: bytes, headers: dict[str, str], failures: Counter[str]
    ) -> Any:
        """Return the items of an answer; none, and a failure is counted, where there is none."""
        try:
            async with session.post(path, data=body, headers=headers) as response:
                content = orjson.loads(await response.read())
                if response.status == 200:
                    outputs = {output["name"]: output["data"] for output in content["outputs"]}
                    return outputs[self._spec.data.item]
                failures[f"{response.status}: {content.get('error')}"] += 1
        except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
            failures[f"{type(error).__name__}: {error}"] += 1
        return []

    def _input_values(self, values: pl.Series) -> Any:
        if values.name == Columns.TIME:
            return values.dt.epoch("us").to_numpy()
        return as_array(values, self._spec.data.by_name[values.name])

    def _send_events(self, client: ShortlistClient, answered: pl.DataFrame) -> None:
        outcomes = [name for name in answered.columns if self._is_outcome(name)]
        rows = answered.select("request_id", "item_id", "position", "seen", *outcomes).to_dicts()
        events = [
            Event(
                _request_id(row["request_id"]), row["item_id"], seen=row["seen"],
                outcome={name: row[name] for name in outcomes if row["seen"] and row[name] is not None},
                event_id=f"{_request_id(row['request_id'])}-{row['position']}",
            )
            for row in rows
        ]  # fmt: skip
        if refusals := client.send_events(events):
            raise ShortlistError(f"{len(refusals)} events of users were refused; the first: {refusals[0]}")

    def _is_outcome(self, name: str) -> bool:
        column = self._spec.data.by_name.get(name)
        placed = {*self._spec.data.placement.values()}
        return name == self._spec.data.label or (column is not None and column.known == "after" and name not in placed)

    def _wait_for_log(self, log: LogFollower, answered: int) -> None:
        """Wait until the prediction log holds the answers of a day: before, monitoring would report a low volume."""
        if self._deployer.context.serving.log.sampling < 1:
            return  # the number of logged answers is unknown
        deadline, logged_count = time.monotonic() + _MAX_LOG_SECONDS, 0
        while (logged_count := logged_count + _count_logged(log)) < answered:
            if time.monotonic() > deadline:
                raise ShortlistError(
                    f"{self._deployer.paths.predictions}: holds {logged_count:,} of {answered:,} answers of a day,"
                    f" {_MAX_LOG_SECONDS:g} s after the last one; see the servers' logs in"
                    f" {self._deployer.paths.logs}"
                )
            time.sleep(_POLL_SECONDS)

    @contextmanager
    def during_rollouts(self) -> Iterator[None]:
        """Play the next days while the block runs and a canary gets a share of the users.

        A step of the canary takes one whole day, or more where that is not enough to decide.

        Raises:
            ShortlistError: As for `play_day`.
        """
        is_over = threading.Event()
        with ThreadPoolExecutor(1, "users") as pool:
            playing = pool.submit(self._play_during_rollouts, is_over)
            try:
                yield
            finally:
                is_over.set()
        playing.result()

    def _play_during_rollouts(self, is_over: threading.Event) -> None:
        """Play one day per step of a rollout, and another one where a step needs more traffic."""
        while not is_over.is_set() and self.next_day < self._world.source.days:
            step = self._rollout_step()
            if step is None:
                is_over.wait(_POLL_SECONDS)
                continue
            self.play_day(self.next_day)
            deadline = time.monotonic() + _MAX_STEP_SECONDS
            while self._rollout_step() == step and time.monotonic() < deadline and not is_over.is_set():
                is_over.wait(_POLL_SECONDS)

    def _rollout_step(self) -> int | None:
        """Return the step of the running rollout; None while no user gets the candidate."""
        rollout = self._deployer.rollouts.latest()
        return rollout.state.step if rollout is not None and rollout.state.phase in _CANARY_PHASES else None


def _request_id(number: int) -> str:
    return f"drill-{number}"


def _count_logged(log: LogFollower) -> int:
    """Return the number of new answers to users in the log."""
    return sum(rows["track"].drop_nulls().len() for rows in log.read_new())
