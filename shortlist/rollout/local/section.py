"""The spec's section for the local stack; it is read in every step, so it imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from pydantic import field_validator

from shortlist.spec.runtime import FleetSection
from shortlist.system.registry import AddressRegistry

GATEWAYS: Final = AddressRegistry("gateways", {"envoy": "shortlist.rollout.local.envoy.gateway:EnvoyGateway"})
"""Gateways by their name in a spec; each is a `shortlist.rollout.local.gateway.Gateway`."""


class StackSection(FleetSection):
    """Triton behind a gateway on this machine, supervised."""

    connection: ClassVar[str] = "shortlist.rollout.local.connection:StackConnection"

    kind: Literal["stack"] = "stack"
    """`make serve` starts it."""
    gateway: str = "envoy"
    """What splits users between versions: `envoy`, or the name under which an installed package adds another one."""

    @field_validator("gateway")
    @classmethod
    def _is_registered(cls, name: str) -> str:
        if name not in GATEWAYS and name not in GATEWAYS.complete():
            raise ValueError(f"unknown gateway {name!r}; wanted one of {', '.join(GATEWAYS)}")
        return name
