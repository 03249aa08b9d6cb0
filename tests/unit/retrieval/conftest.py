from __future__ import annotations

from pathlib import Path

import pytest
from retrieval_log import Log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "valid_log")
