"""Fixtures of distributed trainings: the small feature table of the models' unit tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from shortlist.storage.tables import DayTable

_UNIT = Path(__file__).parents[2] / "unit/models/conftest.py"


@pytest.fixture(scope="session")
def write_table() -> Callable[..., DayTable]:
    """Return a function that writes a table: a warm-up day, training days, one to validate, one to test."""
    spec = importlib.util.spec_from_file_location("small_table", _UNIT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written: Callable[..., DayTable] = module._write
    return written


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory, write_table: Callable[..., DayTable]) -> DayTable:
    """Return a table with two training days in four files, only to be read."""
    return write_table(tmp_path_factory.mktemp("table") / "table")
