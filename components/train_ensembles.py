"""Kubeflow wrapper of shortlist.training.ensembles: the models that combine other models."""

from typing import List  # noqa: UP035 - Kubeflow reads this spelling alone

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def train_ensembles(
    declared: list,
    name: str,
    gates: str,
    serving: str,
    runtime: str,
    log: dict,
    stores: str,
    cause: dict,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    table: dsl.Input[dsl.Dataset],
    models: dsl.Input[List[dsl.Model]],  # noqa: UP006
    scores: dsl.Input[List[dsl.Dataset]],  # noqa: UP006
    ensembles: dsl.Output[dsl.Model],
) -> list:
    """Train every ensemble, log it to MLflow, score its rows, and validate its export on a real Triton.

    Returns the name, kind, role and MLflow run of each, as JSON.
    """
    from pathlib import Path

    from shortlist.ranking.ranker import MemberFiles
    from shortlist.spec.gates import Gates
    from shortlist.spec.runtime import Runtime
    from shortlist.spec.serving import Serving
    from shortlist.tracking.artefact_metadata import read_metadata, write_metadata
    from shortlist.tracking.lineage import TrainingTrigger
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import step
    from shortlist.training.ensembles import FeatureFolders, train_ensembles

    with step("train_ensembles") as running_step:
        scored = {read_metadata(artefact, "model"): Path(artefact.path) for artefact in scores}
        trained = {read_metadata(artefact, "model"): Path(artefact.path) for artefact in models}
        members = {model: MemberFiles(folder, scored[model]) for model, folder in trained.items()}
        sections = (
            Gates.model_validate_json(gates), Serving.model_validate_json(serving), Runtime.model_validate_json(runtime)
        )  # fmt: skip
        trigger = TrainingTrigger.parse(cause)
        context = RunContext(name=name, stores=stores, input_digest=log["digest"], code=code, cause=trigger)
        folders = FeatureFolders(Path(valid_log.path), Path(fitted.path), Path(table.path), members)
        trained_ensembles = train_ensembles(declared, folders, sections, context, Path(ensembles.path))
    write_metadata(ensembles, step=running_step.record)
    return trained_ensembles
