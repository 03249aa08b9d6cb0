"""From an alarm to at most one run: the policy decides, a claim makes it one, the run begins."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Protocol

from monitoring.retraining.retrain_policy import decide
from monitoring.store.monitoring_store import MonitoringStore
from monitoring.windows.records import RetrainDecision
from shortlist.contracts import ShortlistError
from shortlist.spec.monitoring import RetrainPolicy
from shortlist.storage.storage_config import redact_passwords

_log = logging.getLogger(__name__)


class RunStarter(Protocol):
    """Starts trainings elsewhere; `pipelines` has the one for Kubeflow."""

    def __call__(self, decision: RetrainDecision, /) -> str:
        """Start the run of a decision, or find the one that was started for its key before; return its id.

        Raises:
            ShortlistError: It could not be started now.
        """


class RetryLaterError(ShortlistError):
    """Nothing is lost and nothing was started: ask again."""


@dataclass(frozen=True)
class RetrainerResponse:
    """What came of an alarm."""

    result: Literal["started", "hold", "page"]
    reason: str
    run: str = ""
    """Of what was started."""


class Retrainer:
    """Starts the trainings of one spec.

    It has no memory of its own: ten of them on ten machines start one run, because they share the monitoring store.

    Args:
        monitoring_store: Of the spec.
        policy: As the spec declares it.
        start: Starts a run.
        clock: Tells the time; it changes no decision, only when it was made.
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
        """Decide from the monitoring store, as a monitoring run does, and start a training where that is the decision.

        Raises:
            RetryLaterError: Kubeflow is unavailable, or another process has claimed the training and not begun yet.
            ShortlistError: The monitoring store cannot be read.
        """
        self.monitoring_store.recover()
        reports = self.monitoring_store.reports()
        if not reports:
            return RetrainerResponse("hold", "no window of live traffic has been evaluated yet; run make watch")
        decision = decide(
            self.monitoring_store.spec, reports, self.monitoring_store.retrainings(), self._policy, self._clock()
        )
        if decision.action != "retrain":
            return RetrainerResponse(decision.action, decision.reasons[0])
        if not self.monitoring_store.claim(decision):
            spec = self.monitoring_store.spec
            raise RetryLaterError(f"{spec}: another process has claimed {decision.key} and not begun yet")
        return begin(self.monitoring_store, decision, self._start)


def begin(monitoring_store: MonitoringStore, decision: RetrainDecision, start: RunStarter) -> RetrainerResponse:
    """Start the training of a claimed decision and note that in the monitoring store.

    A process that dies in between leaves a claim without a training: after ten minutes anybody may claim it, and
    finds the run that was started by its key.

    Args:
        monitoring_store: In which this process has claimed it.
        decision: To retrain.
        start: Starts a run.

    Raises:
        RetryLaterError: It could not be started; the claim is given back.
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
    if not monitoring_store.start(
        decision, run
    ):  # it took longer than a claim holds, and somebody else found the same run
        return RetrainerResponse("hold", f"another process has begun {decision.key}", run)
    _log.info("%s: run %s began for %s", monitoring_store.spec, run, decision.key)
    return RetrainerResponse("started", decision.reasons[0], run)
