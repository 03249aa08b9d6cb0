"""Ensembles: models of other models, trained on their outputs and validated in one step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, Self

from shortlist.ranking.kind import DeclaredModel
from shortlist.ranking.ranker import MemberFiles
from shortlist.serving.validation.slates import evaluate_slates_of_model
from shortlist.serving.validation.validate_export import validate_export
from shortlist.slates.step import RELEASE
from shortlist.spec.data import Data
from shortlist.spec.gates import ExportLimits
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import Serving
from shortlist.storage.artefacts import read_json, write_json
from shortlist.tracking.artefact_metadata import PipelineArtefact, artefacts_by_model
from shortlist.tracking.run_context import RunContext
from shortlist.training.training import train_and_track

_INDEX: Final = "ensembles.json"


class ArtifactFolder(Protocol):
    """An artifact of another step."""

    path: str


class EnsembleArtefact(NamedTuple):
    """One folder of an ensemble, in the form of a pipeline's artifact."""

    path: str
    metadata: dict[str, Any]
    """Name, kind, role and MLflow run of the model, and the names of its members."""


class EnsembleSections(NamedTuple):
    """Sections of the spec that the ensembles' step reads."""

    log: Data
    export_limits: ExportLimits
    serving: Serving
    runtime: Runtime

    @classmethod
    def parse(cls, log: str, export_limits: str, serving: str, runtime: str) -> Self:
        """Return the sections of their JSON."""
        return cls(
            Data.model_validate_json(log), ExportLimits.model_validate_json(export_limits),
            Serving.model_validate_json(serving), Runtime.model_validate_json(runtime),
        )  # fmt: skip


class FeatureFolders(NamedTuple):
    """Outputs of earlier steps: log, fitted features, table, every member, and the release."""

    valid_log: Path
    fitted: Path
    table: Path
    members: Mapping[str, MemberFiles]
    """Outputs of all models that are no ensembles, by name."""
    release: Path | None = None
    """Folder of the assembled release, to evaluate the ensembles' slates; None: no retrieval is declared."""


def train_ensembles(
    models: Sequence[str],
    folders: FeatureFolders,
    sections: EnsembleSections,
    context: RunContext,
    out: Path,
) -> list[str]:
    """Train, score, track and validate every ensemble, and evaluate its slates; return its metadata as JSON.

    Args:
        models: All declared models, each as the JSON of a `DeclaredModel`; those without members are skipped.
        folders: Outputs of earlier steps.
        sections: Sections of the spec.
        context: Spec, stores, log, code and cause.
        out: Folder to write; `ensemble_artefacts` reads it.
    """
    log, limits, serving, runtime = sections
    trained = []
    out.mkdir(parents=True, exist_ok=True)
    for declared in map(DeclaredModel.read, models):
        if not declared.members:
            continue
        folder = out / declared.name
        model, scores, validation = (folder / part for part in ("model", "scores", "export_validation"))
        members = {name: folders.members[name] for name in declared.members}
        tracked_run = train_and_track(declared, runtime, context, folders.fitted, folders.table, model, scores, members)
        validate_export(model, scores, folders.valid_log, folders.fitted, limits, serving, runtime.seed, validation)
        if folders.release is not None:
            inputs = model, folders.valid_log, folders.fitted, folder / "slates" / declared.name
            evaluate_slates_of_model(folders.release / RELEASE, log, *inputs, runtime.seed)
        trained.append(
            {
                "model": declared.name, "kind": declared.kind, "role": declared.role, "mlflow_run": tracked_run.run,
                "begun": tracked_run.continued_from, "members": list(declared.members),
            }
        )  # fmt: skip
    write_json(out / _INDEX, {"models": trained})
    return [json.dumps(ensemble) for ensemble in trained]


def ensemble_artefacts(
    ensembles: ArtifactFolder | None, part: Literal["model", "scores", "export_validation", "slates"]
) -> list[EnsembleArtefact]:
    """Return the models, scores, export validations or evaluated slates of all ensembles, in their order.

    Args:
        ensembles: The folder that `train_ensembles` wrote; None: none is declared.
        part: Name of the folder of each ensemble.
    """
    if ensembles is None:
        return []
    folder = Path(ensembles.path)
    models = read_json(folder / _INDEX)["models"]
    return [EnsembleArtefact(str(folder / ensemble["model"] / part), ensemble) for ensemble in models]


def find_slate_folders(slates: Sequence[PipelineArtefact], ensembles: ArtifactFolder | None) -> dict[str, Path]:
    """Return the folder of the evaluated slates of every candidate, by name; empty where no slates are made.

    Args:
        slates: Outputs of `evaluate_slates`, of baselines too.
        ensembles: The folder that `train_ensembles` wrote; None: none is declared.
    """
    if not slates:
        return {}
    evaluated: list[PipelineArtefact] = [*slates, *ensemble_artefacts(ensembles, "slates")]
    return {name: Path(artefact.path) / name for name, artefact in artefacts_by_model(evaluated, "candidate").items()}
