"""Parallel work on many keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import polars as pl

from shortlist.system.query_engine import Engine, resolve_engine

Item = TypeVar("Item")
Mapped = TypeVar("Mapped")


def workers(engine: Engine) -> int:
    """Return the number of keys to work on at once.

    It is the number of cores, because sorting and encoding one key's counts keeps one busy; 1 on a GPU, whose queries
    share its memory.
    """
    return pl.thread_pool_size() if resolve_engine(engine) == "cpu" else 1


def parallel_map(work: Callable[[Item], Mapped], items: Iterable[Item], engine: Engine) -> Iterator[Mapped]:
    """Yield the result of the work on each item, in order; an error is raised here, and no further item is begun.

    >>> list(parallel_map(abs, [-1, 2], "cpu"))
    [1, 2]
    """
    with ThreadPoolExecutor(workers(engine)) as pool:
        yield from pool.map(work, items)
