"""Models that are made of other models: trained on what those left, and validated, in one step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

from models.base import DeclaredModel
from models.ranker import MemberFiles
from shortlist.serving.validation.validate_export import validate_export
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import Serving
from shortlist.storage.artefacts import read_json, write_json
from shortlist.training.training import RunContext, train_and_track

_INDEX: Final = "ensembles.json"


class Artefact(Protocol):
    """What a step is given of another one."""

    path: str


class EnsembleArtefact(NamedTuple):
    """One folder of an ensemble, as a pipeline hands on those of other models."""

    path: str
    metadata: dict[str, Any]
    """Name, kind, role and MLflow run of the model, and the names of its members."""


class FeatureFolders(NamedTuple):
    """What earlier steps left: log, fitted features, table, and every member."""

    valid_log: Path
    fitted: Path
    table: Path
    members: Mapping[str, MemberFiles]
    """All models that are made of no others, by name."""


def train_ensembles(
    models: Sequence[str],
    folders: FeatureFolders,
    sections: tuple[Gates, Serving, Runtime],
    context: RunContext,
    out: Path,
) -> list[str]:
    """Train, score, track and validate every model that is made of others; return what later steps are told, as JSON.

    Args:
        models: All that are declared, each a text (`models.base.DeclaredModel`); those without members are left out.
        folders: What earlier steps left.
        sections: Of the spec.
        context: Spec, stores, log, code and cause.
        out: Folder to write; `ensemble_artefacts` reads it.
    """
    limits, serving, runtime = sections
    trained = []
    out.mkdir(parents=True, exist_ok=True)
    for declared in map(DeclaredModel.read, models):
        if not declared.members:
            continue
        folder = out / declared.name
        model, scores, validation = (folder / part for part in ("model", "scores", "export_validation"))
        members = {name: folders.members[name] for name in declared.members}
        done = train_and_track(declared, runtime, context, folders.fitted, folders.table, model, scores, members)
        validate_export(model, scores, folders.valid_log, folders.fitted, limits, serving, runtime.seed, validation)
        trained.append(
            {
                "model": declared.name, "kind": declared.kind, "role": declared.role, "mlflow_run": done.run,
                "begun": done.begun, "members": list(declared.members),
            }
        )  # fmt: skip
    write_json(out / _INDEX, {"models": trained})
    return [json.dumps(one) for one in trained]


def ensemble_artefacts(
    ensembles: Artefact | None, part: Literal["model", "scores", "export_validation"]
) -> list[EnsembleArtefact]:
    """Return the models, scores or export validations of all ensembles, in their order.

    Args:
        ensembles: The folder that `train_ensembles` wrote; None: none is declared.
        part: Which of them.
    """
    if ensembles is None:
        return []
    folder = Path(ensembles.path)
    models = read_json(folder / _INDEX)["models"]
    return [EnsembleArtefact(str(folder / one["model"] / part), one) for one in models]
