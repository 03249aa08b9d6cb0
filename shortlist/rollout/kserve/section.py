"""The spec's section for a fleet on a cluster; it is read in every step, so it imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar, Literal

from shortlist.spec.runtime import FleetSection


class KServe(FleetSection):
    """KServe's servers behind Envoy Gateway, declared in `runtime.cluster`."""

    option: ClassVar[str] = "cluster"
    connection: ClassVar[str] = "shortlist.rollout.kserve.connection:KServeConnection"
    command_runner: ClassVar[str] = "shortlist.rollout.kserve.command_job:run_in_cluster"
    is_remote: ClassVar[bool] = True

    kind: Literal["kserve"] = "kserve"
    """InferenceServices, one per version."""
