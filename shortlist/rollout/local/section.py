"""What a spec says of this machine's fleet; read in every step, so it loads nothing."""

from __future__ import annotations

from typing import ClassVar, Literal

from shortlist.spec.runtime import FleetSection


class Stack(FleetSection):
    """This machine's Triton and Envoy, supervised."""

    connection: ClassVar[str] = "shortlist.rollout.local.connection:StackConnection"

    kind: Literal["stack"] = "stack"
    """`make serve` starts it."""
