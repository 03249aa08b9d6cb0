"""Doing the next piece of work in a thread while the last one is being used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar, cast

Item = TypeVar("Item")
Result = TypeVar("Result")

_END: Any = object()


def prefetch(items: Iterable[Item], depth: int = 1) -> Iterator[Item]:
    """Give items, in order, of which another thread makes the next ones meanwhile; what it raises is raised here.

    Reading and parsing leave Python's lock alone, so the two run on two cores.

    Args:
        items: Made one after another, by that thread only.
        depth: How many are made in advance: so many more are in memory.

    >>> list(prefetch(range(3), depth=2))
    [0, 1, 2]
    """
    source = iter(items)
    pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    try:
        waiting = deque(pool.submit(next, source, _END) for _ in range(depth))
        while (item := waiting.popleft().result()) is not _END:
            waiting.append(pool.submit(next, source, _END))
            yield cast(Item, item)
    finally:
        pool.shutdown(cancel_futures=True)


def results(work: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Give what the work makes of each item, in order; what it raises is raised here.

    Args:
        work: Done in other threads, for several items at once.
        items: Taken when they are needed, in the thread that asks; so many more than `workers` are in memory as one,
            as items or as results.
        workers: How many items are worked on at once.

    >>> list(results(abs, [-1, 2], workers=2))
    [1, 2]
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix="results")
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            del item  # it is the work's alone
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def prefetch_map(work: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[tuple[Item, Result]]:
    """Give items, in order, each with what the work makes of it; see `results`.

    >>> list(prefetch_map(abs, [-1, 2], workers=2))
    [(-1, 1), (2, 2)]
    """
    return results(lambda item: (item, work(item)), items, workers)
