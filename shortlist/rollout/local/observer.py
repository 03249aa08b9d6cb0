"""Observes a rollout on this machine: the stack's logs, and the health of the canary's servers."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from shortlist.rollout.analysis_observer import AnalysisObserver
from shortlist.rollout.checks import Health
from shortlist.rollout.evidence_reader import EvidenceReader
from shortlist.rollout.local.stack import Stack
from shortlist.rollout.observations import Requests
from shortlist.rollout.record import RolloutRecord
from shortlist.serving.log.log_writer import is_sampled

_SETTLE_SECONDS: Final = 8.0
"""Longest wait, at the end, for what was answered to reach the prediction log."""
_SILENT_SECONDS: Final = 5.0
"""After which a server that has not crashed, and does not say that it is ready, is not."""
_ASK_AGAIN_SECONDS: Final = 0.3


class LocalObserver(AnalysisObserver):
    """Watches one rollout.

    Args:
        stack: Its logs and processes.
        record: The rollout.
        sampling: Share of answers that the prediction log keeps.
    """

    def __init__(self, stack: Stack, record: RolloutRecord, sampling: float) -> None:
        policy = record.policy
        sampled = None if sampling >= 1 else partial(is_sampled, share=sampling)
        steps, began = len(policy.steps), record.began
        reader = EvidenceReader(stack.paths, record.id, steps, policy.kpi, sampled, since=began, guarded=record.labels)
        super().__init__(reader, policy, partial(health_of, stack, record.state.candidate))

    def total(self) -> Requests:
        """Return the count of all requests so far, once what was answered is logged or has had time to be."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while (counted := super().total()).lost and time.monotonic() < deadline:
            time.sleep(_ASK_AGAIN_SECONDS)
        return counted


def health_of(stack: Stack, version: int) -> Health:
    """Return how a version's servers are; on a busy machine one that is well may be silent for a moment."""
    deadline = time.monotonic() + _SILENT_SECONDS
    health = stack.health(version)
    while not health.ready and not health.restarts and time.monotonic() < deadline:
        time.sleep(_ASK_AGAIN_SECONDS)
        health = stack.health(version)
    return Health(
        ready=health.ready,
        restarts=health.restarts,
        fatal=tuple(one.program for one in health.programs if one.state == "FATAL"),
    )
