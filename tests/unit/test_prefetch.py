"""Work prefetch comes in order, its errors come out, and no more is done than was asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from shortlist.system.prefetch import parallel_map_pairs, prefetch


def test_items_come_in_order_and_from_another_thread() -> None:
    def made() -> Iterator[tuple[int, int]]:
        for number in range(50):
            yield number, threading.get_ident()

    found = list(prefetch(made(), depth=3))
    assert [number for number, _ in found] == list(range(50))
    assert threading.get_ident() not in {thread for _, thread in found}


def test_an_error_comes_out_after_the_items_before_it() -> None:
    def made() -> Iterator[int]:
        yield 1
        raise ValueError("torn")

    items = prefetch(made())
    assert next(items) == 1
    with pytest.raises(ValueError, match="torn"):
        next(items)


def test_no_more_is_made_than_so_many_in_advance() -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    items = prefetch(numbers(), depth=2)
    assert next(items) == 0
    items.close()  # type: ignore[attr-defined]
    assert len(made) <= 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_results_come_in_order_whatever_is_done_first() -> None:
    later = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert later.wait(30), "the next item was not worked on meanwhile"
        later.set()
        return -number

    assert list(parallel_map_pairs(work, range(9), workers=2)) == [(number, -number) for number in range(9)]


def test_an_error_of_the_work_comes_out_at_its_item() -> None:
    def work(number: int) -> int:
        if number == 1:
            raise ValueError("torn")
        return number

    results = parallel_map_pairs(work, range(5), workers=2)
    assert next(results) == (0, 0)
    with pytest.raises(ValueError, match="torn"):
        next(results)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("results")]


def test_no_more_items_are_taken_than_are_worked_on() -> None:
    taken: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = parallel_map_pairs(abs, numbers(), workers=2)
    assert next(results) == (0, 0)
    results.close()  # type: ignore[attr-defined]
    assert taken == [0, 1, 2]
