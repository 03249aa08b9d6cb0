"""The users of a drill: requests are replayed day by day, also while a version is rolled out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from shortlist.contracts import ShortlistError
from shortlist.deployment.local_deployer import LocalDeployer
from shortlist.drill.world import DrillWorld
from shortlist.rollout.states.phases import Phase
from shortlist.serving.log.log_follower import LogFollower
from shortlist.serving.log.logs import ANSWER_SCHEMA
from shortlist.serving.log.serving_log import ServingLog
from shortlist.spec.serving import ReplayTraffic

_OUTCOME_DELAY_SECONDS: Final = 0.1
_RATE: Final = 200.0
"""Requests per second."""
_MAX_STEP_SECONDS: Final = 20.0
"""Longest wait, after a day was replayed, for the step of the rollout to end."""
_POLL_SECONDS: Final = 0.2
_MAX_LOG_SECONDS: Final = 60.0
"""Longest wait for the answers to appear in the prediction log."""
_CANARY_PHASES: Final = frozenset({Phase.SHIFTING, Phase.WATCHING})
"""Phases in which some users get the candidate."""


class DrillUsers:
    """Replays the users of a drill's world.

    Args:
        deployer: The spec's deployer; its stack is running.
        world: The world with the log of every day.
        first_day: Number of the first day to replay.
    """

    def __init__(self, deployer: LocalDeployer, world: DrillWorld, first_day: int) -> None:
        self._deployer, self._world = deployer, world
        self.next_day = first_day
        """Number of the next day to replay."""

    def play_day(self, number: int) -> None:
        """Replay all requests of a day.

        Raises:
            ShortlistError: The stack is not running, serves no model, or does not log its answers.
        """
        traffic = ReplayTraffic(kind="replay", rate=_RATE, outcome_delay_seconds=_OUTCOME_DELAY_SECONDS)
        log = LogFollower(ServingLog.on_disk(self._deployer.paths.predictions, ANSWER_SCHEMA), ["track"])
        _count_logged(log)  # what was logged before
        replay = self._deployer.play(self._world.write_day_log(number), traffic)
        self._wait_for_log(log, replay["answered"])
        self.next_day = number + 1

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
        """Replay the next days while the block runs and a canary gets a share of the users.

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
        """Replay one day per step of a rollout, and another one where a step needs more traffic."""
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


def _count_logged(log: LogFollower) -> int:
    """Return the number of new answers to users in the log."""
    return sum(rows["track"].drop_nulls().len() for rows in log.read_new())
