"""The project that a user edits: the folder with pipelines/, components/, feature_repo/, models/ and monitoring/."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Final

from shortlist.contracts import ShortlistError

VARIABLE: Final = "SHORTLIST_ROOT"
PACKAGES: Final = ("components", "feature_repo", "models", "monitoring", "pipelines")
"""Folders of a project. They are imported from its root and never installed: their names are generic."""
_MARK: Final = Path("feature_repo") / "definitions.py"


@cache
def project_root() -> Path:
    """Return the project's root: the environment's, else the checkout around this package, else the nearest parent.

    Raises:
        ShortlistError: No project is there.
    """
    named = os.environ.get(VARIABLE)
    if named:
        root = Path(named).resolve()
        if not (root / _MARK).is_file():
            raise ShortlistError(f"{VARIABLE}: {root} is no project of Shortlist; it has no {_MARK}")
        return root
    here = Path.cwd()
    for folder in (Path(__file__).resolve().parents[2], here, *here.parents):
        if (folder / _MARK).is_file():
            return folder
    raise ShortlistError(
        f"{here}: no project of Shortlist here or in a folder above; wanted one with {_MARK}."
        f" Change to it, or set {VARIABLE}."
    )


def use_project() -> Path:
    """Make the project's packages importable, here and in every process started from here; return its root."""
    root = project_root()
    text = str(root)
    if text not in sys.path:
        sys.path.insert(0, text)
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if text not in inherited:
        os.environ["PYTHONPATH"] = os.pathsep.join([text, *inherited])
    os.environ[VARIABLE] = text
    return root
