"""The judge on a cluster: its eyes are the servers' logs in the object store, and Prometheus behind the gateway."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial
from typing import Final

from shortlist.contracts import ShortlistError
from shortlist.objects import Objects
from shortlist.serving.cluster.fleet import KubeFleet
from shortlist.serving.cluster.gateway_numbers import GatewayNumbers, gateway_check, gateway_numbers, with_gateway
from shortlist.serving.cluster.prometheus import BlindError, Prometheus
from shortlist.serving.cluster.served_requests import SETTLED_SECONDS, ServedRequests
from shortlist.serving.log_keys import log_key
from shortlist.serving.log_mirror import mirror
from shortlist.serving.places import Places
from shortlist.serving.rollout.checks import Check
from shortlist.serving.rollout.evidence_reader import EvidenceReader
from shortlist.serving.rollout.judge import judge
from shortlist.serving.rollout.judge_observer import observation, requests_of
from shortlist.serving.rollout.observations import Observation, Requests
from shortlist.serving.rollout.record import RolloutRecord

_STAMP: Final = "%Y%m%d"


class KubeObserver:
    """Watches one rollout; the judge is the one that judges on one machine.

    Args:
        fleet: Whose servers are asked how they are.
        objects: Where the logs of predictions and outcomes are.
        prometheus: Knows what the gateway counted.
        record: The rollout.
        places: Of the spec on this machine; copies of the logs are kept there.
        sampling: Share of answers that the prediction log keeps.
        settled_seconds: Age of rows in the log that are counted; also the wait, at the end, for the last of them.
    """

    def __init__(
        self,
        fleet: KubeFleet,
        objects: Objects,
        prometheus: Prometheus,
        record: RolloutRecord,
        places: Places,
        sampling: float,
        settled_seconds: float = SETTLED_SECONDS,
    ) -> None:
        self._fleet, self._objects, self._prometheus = fleet, objects, prometheus
        self._state, self._policy, self._sampling = record.state, record.policy, sampling
        self._places, self._settled_seconds = places.mirror, settled_seconds
        self._since = datetime.strptime(record.id[:8], _STAMP).replace(tzinfo=UTC).date()
        steps, top = len(record.policy.steps), record.policy.kpi.top
        requests = ServedRequests(self._places.predictions, record.id, settled_seconds, record.began)
        self._reader = EvidenceReader(self._places, record.id, steps, top, access=[requests], since=record.began)
        self._seen: dict[int, tuple[GatewayNumbers | None, GatewayNumbers | None]] = {}
        """What the gateway counted at each step, when it was asked last."""

    def look(self, step: int, at_step_seconds: float) -> Observation:
        """Return what there is to see of a step, and what the judge says to it."""
        health = self._fleet.health(self._state.candidate)
        checks: list[Check] = []
        try:
            self._read()
        except ShortlistError as error:  # a store that is away holds the rollout; it is not the candidate's fault
            checks.append(Check("logs", "wait", f"the logs cannot be read: {error}"))
        evidence = self._reader.snapshot()
        blind, served = "", evidence.at(step)
        try:
            self._seen[step] = self._counted(step, at_step_seconds)
        except BlindError as error:
            blind = str(error)
        for number, numbers in self._seen.items():
            evidence = with_gateway(evidence, number, *numbers, self._sampling)
        checks.append(gateway_check(self._policy, step, served, *self._seen.get(step, (None, None)), blind))
        heard = judge(evidence, self._policy, step, at_step_seconds, health, checks)
        return observation(evidence, self._policy, step, heard)

    def total(self) -> Requests:
        """Return the count of all requests so far, once what was answered has had time to reach the log."""
        time.sleep(self._settled_seconds)
        self._read()
        evidence = self._reader.snapshot()
        for number, numbers in self._seen.items():
            evidence = with_gateway(evidence, number, *numbers, self._sampling)
        return requests_of(evidence)

    def _read(self) -> None:
        spec = self._fleet.owner.spec
        mirror(self._objects, log_key(spec, "predictions"), self._places.predictions, self._since)
        mirror(self._objects, log_key(spec, "outcomes"), self._places.outcomes, self._since)
        self._reader.poll()

    def _counted(self, step: int, seconds: float) -> tuple[GatewayNumbers | None, GatewayNumbers | None]:
        slow = self._policy.guardrails.max_p99_ms
        ask = partial(gateway_numbers, self._prometheus, self._fleet.owner, seconds=seconds, max_ms=slow)
        # At the last step nobody is left on the stable track.
        return None if self._policy.steps[step] == 100 else ask("stable"), ask("canary")
