"""Items of the newest answers of a server, by which events about them are checked."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from shortlist.serving.server.features.columns import Codes

MAX_ITEMS: Final = 1_000_000
"""Most items of all answers that a server remembers: 50 to 100 MB of ids."""
Items = Sequence[Any] | Codes
"""Ids in the order in which they were answered."""


class RecentAnswers:
    """Remembers the items of the newest answers, at most `max_items` of all together."""

    def __init__(self, max_items: int = MAX_ITEMS) -> None:
        self._max_items = max_items
        self._items: OrderedDict[str, Items] = OrderedDict()
        self._count = 0

    def add(self, request_id: str, items: Items | None) -> None:
        """Remember the items of an answer; of a repeated id the first. None, of requests without items, is ignored."""
        if items is None or request_id in self._items or len(items) > self._max_items:
            return
        self._items[request_id] = items
        self._count += len(items)
        while self._count > self._max_items:
            self._count -= len(self._items.popitem(last=False)[1])

    def items(self, request_id: str) -> Items | None:
        """Return the items of an answer; None when this server did not give it, or has forgotten it."""
        return self._items.get(request_id)
