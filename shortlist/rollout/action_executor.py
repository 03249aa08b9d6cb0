"""Doing what a rollout asks for, so that asking twice does no harm."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from shortlist.rollout.actions import (
    DrainRequests,
    EnsureServing,
    LoadTestCandidate,
    RemoveRoute,
    RolloutAction,
    RouteAllTraffic,
    SetChampionAlias,
    SetTrafficSplit,
    StartServers,
    StopServers,
    VerifyCandidate,
    VerifyServedFiles,
)
from shortlist.rollout.controller_context import ControllerContext
from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.interruption import Interruption
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.rollouts import RolloutError

_ATTEMPTS: Final = 4
_QUICK: Final = (SetTrafficSplit, RouteAllTraffic, RemoveRoute, SetChampionAlias, StopServers)
"""One short call each: a hiccup of these is not the candidate's fault."""


class ActionExecutor:
    """Carries out actions of one rollout.

    Args:
        tools: Servers, registry, load test.
        record: The rollout when the controller took it up; which versions it is about never changes.
        files: Folder for files that have to be fetched from a remote registry.
        interruption: Cuts long waits short.
    """

    def __init__(
        self, tools: ControllerContext, record: RolloutRecord, files: Path, interruption: Interruption
    ) -> None:
        self._tools = tools
        self._record = record
        self._state = record.state
        self._files = files
        self._interruption = interruption
        self._known: dict[int, Deployment] = {}
        self._insists = False
        self._ways: Mapping[type[RolloutAction], Callable[[Any], None]] = {
            VerifyCandidate: self._verify,
            EnsureServing: self._ensure_serving,
            StartServers: self._serve,
            LoadTestCandidate: self._load_test,
            VerifyServedFiles: self._verify_served_files,
            SetTrafficSplit: self._send,
            RouteAllTraffic: self._send_all,
            RemoveRoute: self._withdraw,
            SetChampionAlias: self._set_champion_alias,
            DrainRequests: self._drain,
            StopServers: self._retire,
        }

    def execute_once(self, action: RolloutAction) -> None:
        """See that what an action asks for is so.

        Raises:
            ShortlistError: It is not, and why.
            Interrupted: A signal came while it waited.
        """
        way = partial(self._ways[type(action)], action)
        self._retry(way) if isinstance(action, _QUICK) else way()

    def execute_with_retries(self, action: RolloutAction) -> None:
        """Perform an action of a rollback: it cannot be interrupted, and it is retried.

        Raises:
            RolloutError: It failed every time.
        """
        self._insists = True
        try:
            self._retry(partial(self._ways[type(action)], action))
        except Exception as error:
            raise RolloutError(
                f"rollout {self._state.rollout}: {type(action).__name__} failed {_ATTEMPTS} times ({error})."
                " The state is kept: fix the cause, then run make rollback, which continues from here."
            ) from error
        finally:
            self._insists = False

    def _verify(self, _: VerifyCandidate) -> None:
        self._deployment(self._state.candidate, anew=True)

    def _ensure_serving(self, action: EnsureServing) -> None:
        if self._tools.fleet.serving() is None:
            self._serve(StartServers(action.version))
            self._retry(partial(self._send_all, RouteAllTraffic(action.version)))

    def _serve(self, action: StartServers) -> None:
        self._tools.fleet.deploy(self._deployment(action.version))
        with nullcontext() if self._insists else self._interruption.interruptible():
            self._tools.fleet.wait_ready(action.version)

    def _load_test(self, _: LoadTestCandidate) -> None:
        with self._interruption.interruptible():
            reasons = self._tools.load_test(self._deployment(self._state.candidate))
        if reasons:
            raise RolloutError("; ".join(reasons))

    def _verify_served_files(self, _: VerifyServedFiles) -> None:
        self._tools.fleet.verify(self._state.candidate)

    def _send(self, action: SetTrafficSplit) -> None:
        assert self._state.former is not None  # without one there are no steps
        self._tools.fleet.route(
            Route(
                stable=self._state.former,
                canary=self._state.candidate,
                percent=action.percent,
                rollout=self._state.rollout,
                step=action.step,
            )
        )

    def _send_all(self, action: RouteAllTraffic) -> None:
        self._tools.fleet.route(Route(stable=action.version))

    def _withdraw(self, _: RemoveRoute) -> None:
        self._tools.fleet.withdraw()

    def _set_champion_alias(self, action: SetChampionAlias) -> None:
        self._tools.models.set_alias("champion", action.version)

    def _drain(self, _: DrainRequests) -> None:
        self._tools.sleep(self._record.policy.drain_seconds)

    def _retire(self, action: StopServers) -> None:
        self._tools.fleet.retire(action.version)

    def _retry(self, call: Callable[[], None]) -> None:
        patience = wait_exponential(self._tools.patience_seconds, max=2)
        attempts = Retrying(
            retry=retry_if_exception_type(Exception),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=patience,
            sleep=self._tools.sleep,
            reraise=True,
        )
        attempts(call)

    def _deployment(self, version: int, anew: bool = False) -> Deployment:
        if anew or version not in self._known:
            prepare = self._tools.blessed if version == self._state.candidate else self._tools.registered
            files = self._files / str(version)
            shutil.rmtree(files, ignore_errors=True)
            self._known[version] = prepare(self._tools.models, version, self._tools.store, files)
        return self._known[version]
