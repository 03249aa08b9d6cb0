"""Iterators that compute the next items in other threads while the current one is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar, cast

Item = TypeVar("Item")
Output = TypeVar("Output")

_END: Any = object()


def prefetch(items: Iterable[Item], depth: int = 1) -> Iterator[Item]:
    """Yield items in order while another thread computes the next ones; its exceptions are raised here.

    Reading and parsing release Python's global lock, so both threads run in parallel.

    Args:
        items: Iterated by the other thread only.
        depth: Number of items that are computed in advance, and kept in memory.

    >>> list(prefetch(range(3), depth=2))
    [0, 1, 2]
    """
    iterator = iter(items)
    pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    try:
        pending = deque(pool.submit(next, iterator, _END) for _ in range(depth))
        while (item := pending.popleft().result()) is not _END:
            pending.append(pool.submit(next, iterator, _END))
            yield cast(Item, item)
    finally:
        pool.shutdown(cancel_futures=True)


def parallel_map(work: Callable[[Item], Output], items: Iterable[Item], workers: int) -> Iterator[Output]:
    """Yield `work(item)` of each item in order, computed by several threads; their exceptions are raised here.

    Args:
        work: Called in other threads, for several items at once.
        items: Iterated in the calling thread when needed; at most `workers` + 1 items or outputs are in memory.
        workers: Number of items that are processed at once.

    >>> list(parallel_map(abs, [-1, 2], workers=2))
    [1, 2]
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix="results")
    pending: deque[Future[Output]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            del item  # so that only the work holds it
            if len(pending) > workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def parallel_map_pairs(
    work: Callable[[Item], Output], items: Iterable[Item], workers: int
) -> Iterator[tuple[Item, Output]]:
    """Yield each item with `work(item)`, in order; see `parallel_map`.

    >>> list(parallel_map_pairs(abs, [-1, 2], workers=2))
    [(-1, 1), (2, 2)]
    """
    return parallel_map(lambda item: (item, work(item)), items, workers)
