"""Kubeflow wrapper of monitoring.reference: what live traffic will be compared with."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def freeze_reference(
    name: str,
    data: str,
    features: str,
    monitoring: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    xgboost_scores: dsl.Input[dsl.Dataset],
    dlrm_scores: dsl.Input[dsl.Dataset],
    reference: dsl.Output[dsl.Dataset],
) -> None:
    """Freeze the distributions of the training data, and every candidate's scores and quality on its test days."""
    from pathlib import Path

    from monitoring.reference import build_reference
    from shortlist.config.data import Data
    from shortlist.config.features import Features
    from shortlist.config.monitoring import Monitoring
    from shortlist.contracts import Files
    from shortlist.tracking.steps import step

    with step("freeze_reference") as this:
        declared = Data.model_validate_json(data), Features.model_validate_json(features)
        folders = {"xgboost": Path(xgboost_scores.path), "dlrm": Path(dlrm_scores.path)}
        scores = {kind: folder for kind, folder in folders.items() if (folder / Files.SCORES).exists()}  # declared
        settings = Monitoring.model_validate_json(monitoring)
        inputs = Path(valid_log.path), Path(fitted.path)
        build_reference(name, *declared, settings, *inputs, scores, Path(reference.path))
    reference.metadata["step"] = this.record
