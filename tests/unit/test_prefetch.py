"""Prefetched items keep their order, errors are raised, and only a bounded number is computed in advance."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from shortlist.system.prefetch import parallel_map_pairs, prefetch


def test_prefetched_items_are_in_order_and_from_another_thread() -> None:
    def numbers_with_threads() -> Iterator[tuple[int, int]]:
        for number in range(50):
            yield number, threading.get_ident()

    items = list(prefetch(numbers_with_threads(), depth=3))
    assert [number for number, _ in items] == list(range(50))
    assert threading.get_ident() not in {thread for _, thread in items}


def test_an_error_is_raised_after_the_preceding_items() -> None:
    def failing_numbers() -> Iterator[int]:
        yield 1
        raise ValueError("torn")

    items = prefetch(failing_numbers())
    assert next(items) == 1
    with pytest.raises(ValueError, match="torn"):
        next(items)


def test_at_most_depth_items_are_computed_in_advance() -> None:
    computed: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            computed.append(number)
            yield number

    items = prefetch(numbers(), depth=2)
    assert next(items) == 0
    items.close()  # type: ignore[attr-defined]
    assert len(computed) <= 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_parallel_map_keeps_the_order_of_items() -> None:
    second_started = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert second_started.wait(30), "the next item was not worked on meanwhile"
        second_started.set()
        return -number

    assert list(parallel_map_pairs(work, range(9), workers=2)) == [(number, -number) for number in range(9)]


def test_an_error_of_the_work_is_raised_at_its_item() -> None:
    def work(number: int) -> int:
        if number == 1:
            raise ValueError("torn")
        return number

    pairs = parallel_map_pairs(work, range(5), workers=2)
    assert next(pairs) == (0, 0)
    with pytest.raises(ValueError, match="torn"):
        next(pairs)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("results")]


def test_at_most_workers_plus_one_items_are_consumed() -> None:
    consumed: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            consumed.append(number)
            yield number

    pairs = parallel_map_pairs(abs, numbers(), workers=2)
    assert next(pairs) == (0, 0)
    pairs.close()  # type: ignore[attr-defined]
    assert consumed == [0, 1, 2]
