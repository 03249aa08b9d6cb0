"""Every fleet by the name that a spec gives it; one is added by a line here and a folder beside this file."""

from __future__ import annotations

from typing import Final

from shortlist.rollout.kserve.section import KServe
from shortlist.rollout.local.section import Stack
from shortlist.spec.runtime import FleetSection
from shortlist.system.registry import Registry

FLEETS: Final = Registry[type[FleetSection]]("fleets", {"stack": Stack, "kserve": KServe})
"""In the order of messages and of the JSON Schema."""
