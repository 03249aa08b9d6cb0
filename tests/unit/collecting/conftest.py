"""A fixture with a new served spec for every test."""

from __future__ import annotations

from pathlib import Path

import pytest
from served_shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)
