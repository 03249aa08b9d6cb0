"""Kubeflow wrapper of shortlist.tracking.run_context; one task per declared model."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def train(
    declared: str,
    name: str,
    runtime: str,
    log: dict,
    stores: str,
    cause: dict,
    code: str,
    fitted: dsl.Input[dsl.Dataset],
    table: dsl.Input[dsl.Dataset],
    model: dsl.Output[dsl.Model],
    scores: dsl.Output[dsl.Dataset],
    metrics: dsl.Output[dsl.Metrics],
) -> str:
    """Train one model, log it to MLflow, and score the validation and test days.

    Returns its name, kind, role and MLflow run, as JSON. The artefacts' metadata have the same values.
    """
    import json
    from pathlib import Path

    from shortlist.ranking.kind import DeclaredModel
    from shortlist.report.kubeflow_artefacts import show_metrics, training_numbers
    from shortlist.spec.runtime import Runtime
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.lineage import TrainingTrigger
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import step
    from shortlist.training.training import train_and_track

    declared_model = DeclaredModel.read(declared)
    with step(f"train_{declared_model.name}") as running_step:
        inputs = Path(fitted.path), Path(table.path)
        outputs = Path(model.path), Path(scores.path)
        trigger = TrainingTrigger.parse(cause)
        context = RunContext(name=name, stores=stores, input_digest=log["digest"], code=code, cause=trigger)
        training = train_and_track(declared_model, Runtime.model_validate_json(runtime), context, *inputs, *outputs)
    declaration = {"model": declared_model.name, "kind": declared_model.kind, "role": declared_model.role}
    trained = {**declaration, "mlflow_run": training.run}
    write_metadata(model, **trained, begun=training.continued_from, step=running_step.record)
    write_metadata(scores, **trained)
    show_metrics(metrics, training_numbers(Path(model.path)))
    return json.dumps(trained)
