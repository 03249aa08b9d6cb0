"""Starts at most one run for an alarm: the policy decides, and one process claims the decision and starts the run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Protocol

from monitoring.retraining.retrain_policy import decide_retraining
from monitoring.store.monitoring_store import MonitoringStore
from monitoring.windows.records import RetrainDecision
from shortlist.contracts import ShortlistError
from shortlist.spec.monitoring import RetrainPolicy
from shortlist.storage.storage_config import redact_passwords

_log = logging.getLogger(__name__)


class RunStarter(Protocol):
    """Interface of what starts runs; `pipelines` has the implementation for Kubeflow."""

    def __call__(self, decision: RetrainDecision, /) -> str:
        """Start the run of a decision, or find the one already started for its key; return its id.

        Raises:
            ShortlistError: It could not be started now.
        """


class RetryLaterError(ShortlistError):
    """Nothing was started; the caller has to retry."""


@dataclass(frozen=True)
class RetrainerResponse:
    """Result of an alarm."""

    result: Literal["started", "hold", "page"]
    reason: str
    run: str = ""
    """Id of the started run."""


class Retrainer:
    """Starts the trainings of one spec.

    It is stateless: ten of them on ten machines start one run, because they share the monitoring store.

    Args:
        monitoring_store: The spec's monitoring store.
        policy: The declared policy.
        start: Starts a run.
        clock: Returns the present moment; it only sets the time of the decision.
    """

    def __init__(
        self,
        monitoring_store: MonitoringStore,
        policy: RetrainPolicy,
        start: RunStarter,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.monitoring_store = monitoring_store
        self._policy = policy
        self._start = start
        self._clock = clock

    def consider(self) -> RetrainerResponse:
        """Decide from the monitoring store, as a monitoring run does, and start a training if that is the decision.

        Raises:
            RetryLaterError: Kubeflow is unavailable, or another process has claimed the training and not started it.
            ShortlistError: The monitoring store cannot be read.
        """
        self.monitoring_store.recover()
        reports = self.monitoring_store.reports()
        if not reports:
            watch = f"make watch SPEC={self.monitoring_store.spec}"
            return RetrainerResponse("hold", f"no window of live traffic has been evaluated yet; run {watch}")
        decision = decide_retraining(
            self.monitoring_store.spec, reports, self.monitoring_store.retrainings(), self._policy, self._clock()
        )
        if decision.action != "retrain":
            return RetrainerResponse(decision.action, decision.reasons[0])
        if not self.monitoring_store.claim(decision):
            spec = self.monitoring_store.spec
            raise RetryLaterError(f"{spec}: another process has claimed {decision.key} and not begun yet")
        return begin_retraining(self.monitoring_store, decision, self._start)


def begin_retraining(
    monitoring_store: MonitoringStore, decision: RetrainDecision, start: RunStarter
) -> RetrainerResponse:
    """Start the training of a claimed decision and record it in the monitoring store.

    A process that dies in between leaves a claim without a training: after ten minutes another process may claim it,
    and finds the started run by its key.

    Args:
        monitoring_store: The store in which this process has claimed the decision.
        decision: The decision to retrain.
        start: Starts a run.

    Raises:
        RetryLaterError: It could not be started; the claim is released.
    """
    try:
        run = start(decision)
    except ShortlistError as problem:
        monitoring_store.release(decision.key)
        reason = redact_passwords(str(problem))
        raise RetryLaterError(f"{monitoring_store.spec}: no training could be started: {reason}") from None
    except BaseException:
        monitoring_store.release(decision.key)
        raise
    if not monitoring_store.start(decision, run):  # the claim expired meanwhile, and another process found the same run
        return RetrainerResponse("hold", f"another process has begun {decision.key}", run)
    _log.info("%s: run %s began for %s", monitoring_store.spec, run, decision.key)
    return RetrainerResponse("started", decision.reasons[0], run)
