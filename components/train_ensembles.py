"""Kubeflow wrapper of shortlist.training.ensembles: the models that are made of other models."""

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
    """Train every model that is made of others, log it to MLflow, score its rows, and put it on a real Triton.

    Returns what later steps are told of each: name, kind, role and MLflow run, as JSON.
    """
    from pathlib import Path

    from models.ranker import MemberFiles
    from shortlist.spec.gates import Gates
    from shortlist.spec.runtime import Runtime
    from shortlist.spec.serving import Serving
    from shortlist.tracking.artefact_metadata import read_metadata, write_metadata
    from shortlist.tracking.lineage import TrainingTrigger
    from shortlist.tracking.steps import step
    from shortlist.training.ensembles import FeatureFolders, train_ensembles
    from shortlist.training.training import RunContext

    with step("train_ensembles") as this:
        scored = {read_metadata(one, "model"): Path(one.path) for one in scores}
        trained = {read_metadata(one, "model"): Path(one.path) for one in models}
        members = {model: MemberFiles(folder, scored[model]) for model, folder in trained.items()}
        sections = (
            Gates.model_validate_json(gates), Serving.model_validate_json(serving), Runtime.model_validate_json(runtime)
        )  # fmt: skip
        why = TrainingTrigger.parse(cause)
        context = RunContext(name=name, stores=stores, input_digest=log["digest"], code=code, cause=why)
        folders = FeatureFolders(Path(valid_log.path), Path(fitted.path), Path(table.path), members)
        done = train_ensembles(declared, folders, sections, context, Path(ensembles.path))
    write_metadata(ensembles, step=this.record)
    return done
