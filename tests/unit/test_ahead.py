"""Work ahead comes in order, its errors come out, and no more is done than was asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from shortlist.ahead import ahead


def test_items_come_in_order_and_from_another_thread() -> None:
    def made() -> Iterator[tuple[int, int]]:
        for number in range(50):
            yield number, threading.get_ident()

    found = list(ahead(made(), depth=3))
    assert [number for number, _ in found] == list(range(50))
    assert threading.get_ident() not in {thread for _, thread in found}


def test_an_error_comes_out_after_the_items_before_it() -> None:
    def made() -> Iterator[int]:
        yield 1
        raise ValueError("torn")

    items = ahead(made())
    assert next(items) == 1
    with pytest.raises(ValueError, match="torn"):
        next(items)


def test_no_more_is_made_than_so_many_in_advance() -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    items = ahead(numbers(), depth=2)
    assert next(items) == 0
    items.close()  # type: ignore[attr-defined]
    assert len(made) <= 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ahead")]
