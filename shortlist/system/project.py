"""Locate the user's project: the folder with pipelines/, components/, feature_repo/, models/ and monitoring/."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Final

from shortlist.contracts import ShortlistError

ROOT_VARIABLE: Final = "SHORTLIST_ROOT"
PACKAGES: Final = ("components", "feature_repo", "models", "monitoring", "pipelines")
"""Folders of a project. They are imported from its root and never installed: their names are generic."""
_MARKER_FILE: Final = Path("feature_repo") / "definitions.py"


@cache
def project_root() -> Path:
    """Return the project's root: of SHORTLIST_ROOT, else the checkout of this package, else the nearest parent folder.

    Raises:
        ShortlistError: No project is found.
    """
    configured_root = os.environ.get(ROOT_VARIABLE)
    if configured_root:
        root = Path(configured_root).resolve()
        if not (root / _MARKER_FILE).is_file():
            raise ShortlistError(f"{ROOT_VARIABLE}: {root} is no project of Shortlist; it has no {_MARKER_FILE}")
        return root
    working_folder = Path.cwd()
    for folder in (Path(__file__).resolve().parents[2], working_folder, *working_folder.parents):
        if (folder / _MARKER_FILE).is_file():
            return folder
    raise ShortlistError(
        f"{working_folder}: no project of Shortlist here or in a folder above; wanted one with {_MARKER_FILE}."
        f" Change to it, or set {ROOT_VARIABLE}."
    )


def use_project() -> Path:
    """Make the project's packages importable in this process and its child processes; return the project's root."""
    root = project_root()
    root_text = str(root)
    if root_text not in sys.path:
        sys.path.insert(0, root_text)
    inherited_paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root_text not in inherited_paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root_text, *inherited_paths])
    os.environ[ROOT_VARIABLE] = root_text
    return root
