"""The spec's section for the local stack; it is read in every step, so it imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar, Literal

from shortlist.spec.runtime import FleetSection


class StackSection(FleetSection):
    """Triton and Envoy on this machine, supervised."""

    connection: ClassVar[str] = "shortlist.rollout.local.connection:StackConnection"

    kind: Literal["stack"] = "stack"
    """`make serve` starts it."""
