"""What a spec says of a cluster's fleet; read in every step, so it loads nothing."""

from __future__ import annotations

from typing import ClassVar, Literal

from shortlist.spec.runtime import FleetSection


class KServe(FleetSection):
    """KServe's servers behind Envoy Gateway; `runtime.cluster` says which."""

    option: ClassVar[str] = "cluster"
    connection: ClassVar[str] = "shortlist.rollout.kserve.connection:KServeConnection"
    is_remote: ClassVar[bool] = True

    kind: Literal["kserve"] = "kserve"
    """InferenceServices, one per version."""
