"""Every online store by its name in a spec; to add one, add a file beside this one and a line here."""

from __future__ import annotations

from typing import Final

from shortlist.features.online_stores.redis import RedisOnline
from shortlist.features.online_stores.sqlite import SQLiteOnline
from shortlist.spec.runtime import OnlineStore
from shortlist.system.registry import Registry

ONLINE_STORES: Final = Registry[type[OnlineStore]](
    "online_stores",
    {
        "sqlite": SQLiteOnline,
        "redis": RedisOnline,
    },
)
"""In the order of messages and of the JSON Schema."""
