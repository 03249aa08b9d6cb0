"""Lineage of a model: cause of the training, spec, log, days, code, and the model that it continues."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Collection, Mapping
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict

from shortlist.contracts import ShortlistError, did_you_mean
from shortlist.storage.artefacts import sha256
from shortlist.system.project import PACKAGES, project_root

Trigger = Literal["manual", "schedule", "drift"]

_FRAMEWORK: Final = Path(__file__).resolve().parents[1]
_GIT_SECONDS: Final = 10


_LONGEST_REASONS: Final = 2_000
_COMMIT: Final = "mlflow.source.git.commit"
"""MLflow shows this tag as the version of a run's source."""
GATE_CODE: Final = "gate_code_version"
"""Tag of a pipeline's run and of a registered version with the digest of the gates that judged; see
`gate_code_version`."""


class TrainingTrigger(BaseModel):
    """Why a training was started, and until which time it reads rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trigger: Trigger = "manual"
    key: str = ""
    """Key of the decision that started it; empty when a person did."""
    reasons: tuple[str, ...] = ()
    """Reasons of the decision."""
    until: str = ""
    """ISO 8601 time; rows at or after it are not read. Empty: no limit."""

    @classmethod
    def parse(cls, cause: Mapping[str, Any]) -> Self:
        """Return the trigger from a pipeline's parameter `cause`; by default a person starts the training.

        Raises:
            ShortlistError: The trigger or a field is unknown.
        """
        unknown_fields = sorted(set(cause) - set(cls.model_fields))
        if unknown_fields:
            raise ShortlistError(f"cause: got '{unknown_fields[0]}', wanted {', '.join(cls.model_fields)}")
        triggers, trigger = get_args(Trigger), cause.get("trigger", "manual")
        if trigger not in triggers:
            raise ShortlistError(
                f"trigger: got '{trigger}', wanted {', '.join(triggers)}{did_you_mean(trigger, triggers)}"
            )
        return cls.model_validate({**cause, "reasons": tuple(cause.get("reasons", ()))})

    def tags(self) -> dict[str, str]:
        """Return the trigger as tags, without empty ones."""
        tags = {"decision": self.key, "reasons": "\n".join(self.reasons)[:_LONGEST_REASONS], "until": self.until}
        return {"trigger": self.trigger, **{name: value for name, value in tags.items() if value}}


class ContinuedFrom(BaseModel):
    """The earlier model that a training continued."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    """MLflow run of that model."""
    version: str = ""
    """Registered version of that model; empty when it has none."""
    mode: str
    """Declared mode of retraining, such as `warm`."""
    learnt: str
    """First and last day that this training learnt from, such as "2026-01-14..2026-01-16"."""

    def tags(self) -> dict[str, str]:
        """Return the fields as tags."""
        tags = {"continued_from.run": self.run, "continued_how": self.mode, "days.learnt": self.learnt}
        return tags | ({"continued_from.version": self.version} if self.version else {})

    def __str__(self) -> str:
        name = f"version {self.version}" if self.version else f"MLflow run {self.run}"
        return f"{self.mode} from {name}, learnt from {self.learnt}"


class Lineage(BaseModel):
    """Inputs of a training; the same lineage and seed give the same model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spec_digest: str
    """Digest of the parts of the spec that the training reads."""
    data_digest: str
    """Digest of the feature table."""
    days: dict[str, str]
    """First and last day per part, such as {"train": "2026-01-06..2026-01-16"}."""
    code_version: str
    git_commit: str | None = None
    cause: TrainingTrigger | None = None
    continued: ContinuedFrom | None = None
    """None: trained from scratch."""

    def tags(self) -> dict[str, str]:
        """Return the lineage as tags of a run or of a model version."""
        days = {f"days.{part}": span for part, span in self.days.items()}
        tags = {
            "spec_digest": self.spec_digest,
            "data_digest": self.data_digest,
            "code_version": self.code_version,
            **days,
            **(self.cause.tags() if self.cause else {}),
            **(self.continued.tags() if self.continued else {}),
        }
        if self.git_commit is not None:
            tags[_COMMIT] = self.git_commit
        return tags


def log_digest(tags: Mapping[str, str]) -> str:
    """Return the digest of the log that a model was trained on, from its tags; empty where it is unknown."""
    return tags.get("data_digest", "").partition("/")[0]


def run_lineage(log: Mapping[str, str], cause: Mapping[str, Any], code: str) -> dict[str, str]:
    """Return the lineage that a run's page shows.

    Args:
        log: Parameter `log` of the graph.
        cause: Parameter `cause` of the graph.
        code: Parameter `code` of the graph.
    """
    training_trigger = TrainingTrigger.parse(cause)
    files = {"input_digest": log["digest"], "code": code, "log": log["location"]}
    return {
        **files,
        "trigger": training_trigger.trigger,
        "decision": training_trigger.key,
        "until": training_trigger.until,
    }


def run_tags(cause: TrainingTrigger, code: str, gate_code: str) -> dict[str, str]:
    """Return the tags of a pipeline's MLflow run at its start."""
    commit = git_commit()
    return {**cause.tags(), "code_version": code, GATE_CODE: gate_code} | ({_COMMIT: commit} if commit else {})


@cache
def code_version() -> str:
    """Return a digest of Shortlist's source files as they are on disk, committed or not; 16 hexadecimal digits."""
    return _digest_files(_FRAMEWORK, *(project_root() / package for package in PACKAGES))


@cache
def step_code_version() -> str:
    """Return `code_version` without the project's gates and canary checks.

    Results of a step are reused while this stays the same. The step that judges candidates is given
    `gate_code_version` too, and a rollout reads canary checks when it runs.
    """
    excluded = [project_root() / "pipelines" / group for group in ("gates", "canary_checks")]
    return _digest_files(_FRAMEWORK, *(project_root() / package for package in PACKAGES), excluded=excluded)


@cache
def gate_code_version() -> str:
    """Return a digest of the gates in the project's files and in installed packages; 16 hexadecimal digits.

    A run with another gate must not reuse a verdict: no other input of the step that gives it names them. (Other
    extensions are named by the spec, which is an input.)
    """
    total = hashlib.sha256(_digest_files(project_root() / "pipelines" / "gates").encode())
    points = sorted(set(entry_points(group="shortlist.gates")), key=lambda point: (point.name, point.value))
    for point in points:
        total.update(f"{point.name}\0{point.value}\0".encode())
    for module in sorted({point.module.partition(".")[0] for point in points}):
        for path in _source_files(module):
            total.update(f"{module}\0{path.name}\0{sha256(path)}\0".encode())
    return total.hexdigest()[:16]


def _digest_files(*folders: Path, excluded: Collection[Path] = ()) -> str:
    total = hashlib.sha256()
    for folder in sorted(folders, key=lambda folder: folder.name):
        for path in sorted(folder.rglob("*.py")):
            if not any(path.is_relative_to(excluded_folder) for excluded_folder in excluded):
                total.update(f"{path.relative_to(folder.parent).as_posix()}\0{sha256(path)}\0".encode())
    return total.hexdigest()[:16]


def _source_files(module: str) -> list[Path]:
    """Return the Python files of a top-level module or package; none where it cannot be found."""
    spec = find_spec(module)
    if spec is None:
        return []
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not folders:
        return [Path(spec.origin)] if spec.origin and Path(spec.origin).is_file() else []
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


@cache
def git_commit() -> str | None:
    """Return the commit that is checked out, if the project is a git repository of its own."""
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "-C", str(project_root()), "rev-parse", "--show-toplevel", "HEAD"]
    completed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_GIT_SECONDS)  # noqa: S603
    top, _, commit = completed.stdout.strip().partition("\n")
    # Where the project is installed inside another repository, HEAD is that repository's.
    return commit if completed.returncode == 0 and Path(top) == project_root() else None
