"""Doing the next piece of work in a thread while the last one is being used."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

Item = TypeVar("Item")

_END: Any = object()


def ahead(items: Iterable[Item], depth: int = 1) -> Iterator[Item]:
    """Give items, in order, of which another thread makes the next ones meanwhile; what it raises is raised here.

    Reading and parsing leave Python's lock alone, so the two run on two cores.

    Args:
        items: Made one after another, by that thread only.
        depth: How many are made in advance: so many more are in memory.

    >>> list(ahead(range(3), depth=2))
    [0, 1, 2]
    """
    source = iter(items)
    pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
    try:
        waiting = deque(pool.submit(next, source, _END) for _ in range(depth))
        while (item := waiting.popleft().result()) is not _END:
            waiting.append(pool.submit(next, source, _END))
            yield cast(Item, item)
    finally:
        pool.shutdown(cancel_futures=True)
