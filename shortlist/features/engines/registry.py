"""Every engine by its name in a spec; to add one, add a file or a folder beside this one and a line here."""

from __future__ import annotations

from typing import Final

from shortlist.features.engines.local import LocalEngine
from shortlist.features.engines.ray.section import RayEngine
from shortlist.spec.runtime import FeatureEngine
from shortlist.system.registry import Registry

FEATURE_ENGINES: Final = Registry[type[FeatureEngine]](
    "feature_engines",
    {
        "local": LocalEngine,
        "ray": RayEngine,
    },
)
"""In the order of messages and of the JSON Schema."""
