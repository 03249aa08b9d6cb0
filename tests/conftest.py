"""What holds for every test."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_REAL = ("graphs", "serving", "cluster", "unit/serving")
"""Folders of tests against real servers and processes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of real processes, which share the machine with whatever else runs there, a second try.

    The run's summary names every test that needed it (`RERUN`), so one that fails now and then is seen and mended.
    """
    for item in items:
        if any(item.path.is_relative_to(_HERE / folder) for folder in _REAL):
            item.add_marker(pytest.mark.flaky(reruns=1))
