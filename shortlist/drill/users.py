"""The users of a drill's world, who ask on one day after another, also while a version is rolled out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from shortlist.contracts import ShortlistError
from shortlist.deployment.local_deployer import LocalDeployer
from shortlist.drill.world import DrillWorld
from shortlist.rollout.phases import Phase
from shortlist.serving.log.log_reader import parts
from shortlist.spec.serving import ReplayTraffic

_OUTCOME_DELAY_SECONDS: Final = 0.1
_RATE: Final = 200.0
"""Requests per second."""
_STEP_SECONDS: Final = 20.0
"""Longest wait, after users asked for a day, for the step of the rollout to end."""
_LOOK_SECONDS: Final = 0.2
_LOGGED_SECONDS: Final = 60.0
"""Longest wait for what was answered to be in the prediction log."""
_SPLIT: Final = frozenset({Phase.SHIFTING, Phase.WATCHING})
"""Phases in which some users get the candidate."""


class DrillUsers:
    """Those who ask the servers.

    Args:
        deployer: Of the spec; its stack is up.
        world: What they are shown and do.
        first_day: Number of the first day on which they ask.
    """

    def __init__(self, deployer: LocalDeployer, world: DrillWorld, first_day: int) -> None:
        self._deployer, self._world = deployer, world
        self.next_day = first_day
        """Number of the next day on which they ask."""

    def ask(self, number: int) -> None:
        """Let everybody ask for a day.

        Raises:
            ShortlistError: The stack is not up, serves nothing, or does not log what it answers.
        """
        traffic = ReplayTraffic(kind="replay", rate=_RATE, outcome_delay_seconds=_OUTCOME_DELAY_SECONDS)
        before = set(self._parts())
        asked = self._deployer.play(self._world.log_of(number), traffic)
        self._wait_for_log(before, asked["answered"])
        self.next_day = number + 1

    def _wait_for_log(self, before: Set[Path], answered: int) -> None:
        """Wait until the prediction log holds the answers of a day: a look right after it would take it for short."""
        if self._deployer.context.serving.log.sampling < 1:
            return  # how many are logged is not known
        deadline = time.monotonic() + _LOGGED_SECONDS
        while (logged := self._logged(before)) < answered:
            if time.monotonic() > deadline:
                raise ShortlistError(
                    f"{self._deployer.paths.predictions}: holds {logged:,} of {answered:,} answers of a day,"
                    f" {_LOGGED_SECONDS:g} s after the last one; see the servers' logs in"
                    f" {self._deployer.paths.logs}"
                )
            time.sleep(_LOOK_SECONDS)

    def _logged(self, before: Set[Path]) -> int:
        """Return how many answers to users the parts hold that are new."""
        new = [path for path in self._parts() if path not in before]
        return sum(pq.read_table(path, columns=["track"])["track"].drop_null().length() for path in new)

    def _parts(self) -> list[Path]:
        return parts(self._deployer.paths.predictions)

    @contextmanager
    def during_rollouts(self) -> Iterator[None]:
        """Let users ask for the next days, whole ones, whenever some of them get a candidate while the block runs.

        A step of the canary takes a day, or more where that is not enough to decide.

        Raises:
            ShortlistError: As `ask`.
        """
        over = threading.Event()
        with ThreadPoolExecutor(1, "users") as pool:
            asking = pool.submit(self._ask_while_split, over)
            try:
                yield
            finally:
                over.set()
        asking.result()

    def _ask_while_split(self, over: threading.Event) -> None:
        """Let users ask for one day per step of a rollout, and for another one where a step needs more of them."""
        while not over.is_set() and self.next_day < self._world.source.days:
            step = self._step()
            if step is None:
                over.wait(_LOOK_SECONDS)
                continue
            self.ask(self.next_day)
            deadline = time.monotonic() + _STEP_SECONDS
            while self._step() == step and time.monotonic() < deadline and not over.is_set():
                over.wait(_LOOK_SECONDS)

    def _step(self) -> int | None:
        """Return the step of the rollout under way; None while no user gets a candidate."""
        rollout = self._deployer.rollouts.latest()
        return rollout.state.step if rollout is not None and rollout.state.phase in _SPLIT else None
