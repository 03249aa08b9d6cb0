"""Paths of side tables in a raw or valid log."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shortlist.spec.data import SideTable

SIDE_FOLDER: Final = "side"
"""Folder of the side tables in a raw or valid log."""


def side_path(folder: Path, table: SideTable) -> Path:
    """Return the path of a side table in a raw or valid log."""
    return folder / SIDE_FOLDER / f"{table.name}.parquet"
