"""Where a model comes from: declaration, log, days and code."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from shortlist.artefacts import sha256

_ROOT: Final = Path(__file__).resolve().parents[2]
_CODE: Final = ("components", "feature_repo", "models", "monitoring", "pipelines", "shortlist")
_GIT_SECONDS: Final = 10


class Lineage(BaseModel):
    """What a training was made from; the same lineage and seed give the same model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spec_digest: str
    """Of what the training reads of the spec."""
    data_digest: str
    """Of the feature table."""
    days: dict[str, str]
    """First and last day per part, such as {"train": "2026-01-06..2026-01-16"}."""
    code_version: str
    git_commit: str | None = None

    def tags(self) -> dict[str, str]:
        """Return the lineage as tags of a run or of a model version."""
        days = {f"days.{part}": span for part, span in self.days.items()}
        tags = {
            "spec_digest": self.spec_digest,
            "data_digest": self.data_digest,
            "code_version": self.code_version,
            **days,
        }
        if self.git_commit is not None:
            tags["mlflow.source.git.commit"] = self.git_commit  # MLflow shows this one as the run's version
        return tags


@cache
def code_version() -> str:
    """Return a digest of Shortlist's own source files, 16 hexadecimal digits; committed or not, it is what runs."""
    total = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            total.update(f"{path.relative_to(_ROOT).as_posix()}\0{sha256(path)}\0".encode())
    return total.hexdigest()[:16]


@cache
def git_commit() -> str | None:
    """Return the commit that is checked out, if Shortlist runs from its own git repository."""
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "-C", str(_ROOT), "rev-parse", "--show-toplevel", "HEAD"]
    said = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_GIT_SECONDS)  # noqa: S603
    top, _, commit = said.stdout.strip().partition("\n")
    # Installed below somebody else's repository, HEAD would be theirs.
    return commit if said.returncode == 0 and Path(top) == _ROOT else None
