"""The model whose scores are ordered: trained on the days before those on which orderings are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from shortlist.contracts import Files
from shortlist.spec.spec import Spec
from shortlist.storage.tables import DayTable
from shortlist.training.export import export, pack
from shortlist.training.train import train


class RunFolders(NamedTuple):
    """Outputs of a run with the declared data and features."""

    log: Path
    """The validated log."""
    fitted: Path
    """Folder of the fitted features."""
    table: Path
    """The feature table."""
    files: Path | None
    """The user's files, for lists of items; None where there are none."""

    def open_log(self) -> DayTable:
        """Return the validated log."""
        return DayTable.open(self.log, Files.LOG)


def train_ordered_model(spec: Spec, model: str, run: RunFolders, scratch: Path) -> Path:
    """Return the folder of a model of the spec, trained on the table of a run, with its exported graph."""
    section: Any = spec.models[model].without_refit
    table, folder = DayTable.open(run.table, Files.TABLE), scratch / "model"
    train(section.kind, section, table, spec.runtime, folder, scratch / "scores", name=model)
    pack(folder, run.fitted)
    export(folder, spec.name)
    return folder
