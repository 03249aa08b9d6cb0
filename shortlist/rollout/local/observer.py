"""Observer of a rollout on the local stack: its logs, and the health of the canary's servers."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from shortlist.rollout.checks.analysis_observer import AnalysisObserver
from shortlist.rollout.checks.health import Health
from shortlist.rollout.evidence.counts import RequestTotals
from shortlist.rollout.evidence.reader import EvidenceReader
from shortlist.rollout.local.stack import Stack
from shortlist.rollout.record import RolloutRecord
from shortlist.serving.log.log_writer import is_sampled
from shortlist.serving.stack_secrets import sampling_key
from shortlist.spec.serving import Serving

_SETTLE_SECONDS: Final = 8.0
"""Longest wait at the end for the last answers to reach the prediction log."""
_SILENT_SECONDS: Final = 5.0
"""Time after which a running server that does not report ready counts as not ready."""
_ASK_AGAIN_SECONDS: Final = 0.3


class LocalObserver(AnalysisObserver):
    """Observes one rollout on the local stack.

    Args:
        stack: The stack with logs and processes.
        record: The rollout.
        serving: The spec's section: the share of answers in the prediction log, and who vouches for users.
    """

    def __init__(self, stack: Stack, record: RolloutRecord, serving: Serving) -> None:
        policy, sampling = record.policy, serving.log.sampling
        reader = EvidenceReader(
            stack.paths,
            record.id,
            len(policy.steps),
            policy.kpi,
            sampled=None
            if sampling >= 1
            else partial(is_sampled, share=sampling, key=sampling_key(stack.paths.secrets)),
            since=record.began_at,
            guarded=record.labels,
            vouches=serving.vouches_for_users,
        )
        health = partial(health_of, stack, record.state.candidate)
        super().__init__(reader, policy, health, record.spec, record.retirement)

    def total(self) -> RequestTotals:
        """Return the counts of all requests so far, after waiting for the last answers to be logged."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while (totals := super().total()).lost and time.monotonic() < deadline:
            time.sleep(_ASK_AGAIN_SECONDS)
        return totals


def health_of(stack: Stack, version: int) -> Health:
    """Return the health of a version's servers; asks again for some seconds, as a busy machine may delay answers."""
    deadline = time.monotonic() + _SILENT_SECONDS
    health = stack.health(version)
    while not health.ready and not health.restarts and time.monotonic() < deadline:
        time.sleep(_ASK_AGAIN_SECONDS)
        health = stack.health(version)
    return Health(
        version=version,
        ready=health.ready,
        restarts=health.restarts,
        fatal=tuple(program.program for program in health.programs if program.state == "FATAL"),
    )
