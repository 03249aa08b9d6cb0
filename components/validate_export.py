"""Kubeflow wrapper of shortlist.serving.validation: tests of the exported model on a real Triton."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def validate_export(
    gates: str,
    serving: str,
    runtime: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    scores: dsl.Input[dsl.Dataset],
    export_validation: dsl.Output[dsl.Dataset],
    metrics: dsl.Output[dsl.Metrics],
    classification: dsl.Output[dsl.ClassificationMetrics],
) -> None:
    """Score test rows in-process, by the exported file and by a real Triton, and put it under load.

    Draws the ROC curve and the confusion matrix of the test rows. A baseline, which is never served, gets only those.
    """
    from pathlib import Path

    from shortlist.report.kubeflow_artefacts import export_numbers, show_classification, show_metrics
    from shortlist.serving.validation.validate_export import validate_export
    from shortlist.spec.gates import Gates
    from shortlist.spec.runtime import Runtime
    from shortlist.spec.serving import Serving
    from shortlist.tracking.artefact_metadata import read_metadata, write_metadata
    from shortlist.tracking.steps import step

    model_metadata = {name: read_metadata(model, name) for name in ("model", "kind", "role")}
    limits = Gates.model_validate_json(gates)
    show_classification(classification, Path(scores.path), limits.decision_threshold)
    if model_metadata["role"] != "candidate":
        show_metrics(metrics, {})
        Path(export_validation.path).mkdir(parents=True, exist_ok=True)
        write_metadata(export_validation, **model_metadata)
        return
    with step(f"validate_export_{model_metadata['model']}") as running_step:
        inputs = Path(model.path), Path(scores.path), Path(valid_log.path), Path(fitted.path)
        section, seed = Serving.model_validate_json(serving), Runtime.model_validate_json(runtime).seed
        validation = validate_export(*inputs, limits, section, seed, Path(export_validation.path))
    show_metrics(metrics, export_numbers(validation))
    write_metadata(export_validation, **model_metadata, step=running_step.record)
