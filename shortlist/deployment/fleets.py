"""Registry of fleets by their name in a spec; a further fleet is one line here and a folder in shortlist/rollout."""

from __future__ import annotations

from typing import Final

from shortlist.rollout.kserve.section import KServe
from shortlist.rollout.local.section import StackSection
from shortlist.spec.runtime import FleetSection
from shortlist.system.registry import Registry

FLEETS: Final = Registry[type[FleetSection]]("fleets", {"stack": StackSection, "kserve": KServe})
"""Fleets, in the order of messages and of the JSON Schema."""
