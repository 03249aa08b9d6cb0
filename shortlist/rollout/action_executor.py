"""Executes the actions of a rollout; every action is idempotent."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from shortlist.rollout.controller_context import ControllerContext
from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.interruption import Interruption
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.rollouts import RolloutError
from shortlist.rollout.states.actions import (
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
    VerifyAnswers,
    VerifyCandidate,
    VerifyServedFiles,
)

_ATTEMPTS: Final = 4
_SHORT_CALLS: Final = (SetTrafficSplit, RouteAllTraffic, RemoveRoute, SetChampionAlias, StopServers, VerifyAnswers)
"""Actions of one short call each. They are retried: a passing failure is not the candidate's fault."""


class ActionExecutor:
    """Executes the actions of one rollout.

    Args:
        context: Servers, registry, load test.
        record: The rollout when the controller started; its versions never change.
        files: Folder for files that are fetched from a remote registry.
        interruption: Ends long waits when a signal arrives.
    """

    def __init__(
        self, context: ControllerContext, record: RolloutRecord, files: Path, interruption: Interruption
    ) -> None:
        self._context = context
        self._record = record
        self._state = record.state
        self._files = files
        self._interruption = interruption
        self._deployments: dict[int, Deployment] = {}
        self._is_required = False
        self._executors: Mapping[type[RolloutAction], Callable[[Any], None]] = {
            VerifyCandidate: self._verify_candidate,
            EnsureServing: self._ensure_serving,
            StartServers: self._start_servers,
            VerifyAnswers: self._verify_answers,
            LoadTestCandidate: self._load_test,
            VerifyServedFiles: self._verify_served_files,
            SetTrafficSplit: self._set_traffic_split,
            RouteAllTraffic: self._route_all_traffic,
            RemoveRoute: self._remove_route,
            SetChampionAlias: self._set_champion_alias,
            DrainRequests: self._drain_requests,
            StopServers: self._stop_servers,
        }

    def execute_once(self, action: RolloutAction) -> None:
        """Execute an action; short calls are retried.

        Raises:
            ShortlistError: The action failed.
            Interrupted: A signal arrived during a wait.
        """
        perform = partial(self._executors[type(action)], action)
        self._retry(perform) if isinstance(action, _SHORT_CALLS) else perform()

    def execute_with_retries(self, action: RolloutAction) -> None:
        """Execute an action that must succeed, such as those of a rollback: retried, and not interruptible.

        Raises:
            RolloutError: Every attempt failed.
        """
        self._is_required = True
        try:
            self._retry(partial(self._executors[type(action)], action))
        except Exception as error:
            raise RolloutError(
                f"rollout {self._state.rollout}: {type(action).__name__} failed {_ATTEMPTS} times ({error})."
                f" The state is kept: fix the cause, then run make rollback SPEC={self._record.spec}, which continues"
                " from here."
            ) from error
        finally:
            self._is_required = False

    def notices(self) -> tuple[str, ...]:
        """Return what should be known of the candidate, whose servers run, before users get it."""
        return tuple(self._context.notices(self._prepare_deployment(self._state.candidate)))

    def _verify_candidate(self, _: VerifyCandidate) -> None:
        self._prepare_deployment(self._state.candidate, refetch=True)

    def _ensure_serving(self, action: EnsureServing) -> None:
        if self._context.fleet.serving() is None:
            self._start_servers(StartServers(action.version))
            self._retry(partial(self._route_all_traffic, RouteAllTraffic(action.version)))

    def _start_servers(self, action: StartServers) -> None:
        self._context.fleet.deploy(self._prepare_deployment(action.version))
        with nullcontext() if self._is_required else self._interruption.interruptible():
            self._context.fleet.wait_ready(action.version)

    def _verify_answers(self, _: VerifyAnswers) -> None:
        if reasons := self._context.answer_failures(self._prepare_deployment(self._state.candidate)):
            raise RolloutError("; ".join(reasons))

    def _load_test(self, _: LoadTestCandidate) -> None:
        with self._interruption.interruptible():
            reasons = self._context.load_test(self._prepare_deployment(self._state.candidate))
        if reasons:
            raise RolloutError("; ".join(reasons))

    def _verify_served_files(self, _: VerifyServedFiles) -> None:
        self._context.fleet.verify(self._state.candidate)

    def _set_traffic_split(self, action: SetTrafficSplit) -> None:
        assert self._state.former is not None  # without one there are no steps
        self._context.fleet.route(
            Route(
                stable=self._state.former,
                canary=self._state.candidate,
                percent=action.percent,
                rollout=self._state.rollout,
                salt=self._record.salt,
                step=action.step,
            )
        )

    def _route_all_traffic(self, action: RouteAllTraffic) -> None:
        self._context.fleet.route(Route(stable=action.version))

    def _remove_route(self, _: RemoveRoute) -> None:
        self._context.fleet.withdraw()

    def _set_champion_alias(self, action: SetChampionAlias) -> None:
        self._context.models.set_alias("champion", action.version)

    def _drain_requests(self, _: DrainRequests) -> None:
        self._context.sleep(self._record.policy.drain_seconds)

    def _stop_servers(self, action: StopServers) -> None:
        self._context.fleet.retire(action.version)

    def _retry(self, call: Callable[[], None]) -> None:
        wait = wait_exponential(self._context.patience_seconds, max=2)
        retrying = Retrying(
            retry=retry_if_exception_type(Exception),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait,
            sleep=self._context.sleep,
            reraise=True,
        )
        retrying(call)

    def _prepare_deployment(self, version: int, refetch: bool = False) -> Deployment:
        if refetch or version not in self._deployments:
            prepare = (
                self._context.prepare_blessed if version == self._state.candidate else self._context.prepare_registered
            )
            files = self._files / str(version)
            shutil.rmtree(files, ignore_errors=True)
            self._deployments[version] = prepare(self._context.models, version, self._context.store, files)
        return self._deployments[version]
