"""What holds for every test."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_REAL = ("graphs", "serving", "cluster", "unit/serving")
"""Folders of tests against real servers and processes."""
_LEFT_OUT: list[pytest.Item] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of real processes, which share the machine with whatever else runs there, a second try.

    The run's summary names every test that needed it (`RERUN`), so one that fails now and then is seen and mended.
    """
    for item in items:
        if any(item.path.is_relative_to(_HERE / folder) for folder in _REAL):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Remember which tests for GPUs are left out."""
    _LEFT_OUT.extend(item for item in items if item.get_closest_marker("gpu"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say by name what was left out, so that nobody takes silence for a pass."""
    if "not gpu" in config.option.markexpr and _LEFT_OUT:
        files = sorted({item.path.name for item in _LEFT_OUT})
        terminalreporter.write_line(
            f"{len(_LEFT_OUT)} tests that need a GPU were left out (make test-gpu runs them): {', '.join(files)}"
        )
