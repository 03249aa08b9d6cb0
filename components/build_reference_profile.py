"""Kubeflow wrapper of monitoring.reference: the profile with which live traffic is compared."""

from typing import List  # noqa: UP035 - Kubeflow reads this spelling alone

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def build_reference_profile(
    name: str,
    data: str,
    features: str,
    monitoring: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    scores: dsl.Input[List[dsl.Dataset]],  # noqa: UP006
    reference: dsl.Output[dsl.Dataset],
    ensembles: dsl.Input[dsl.Model] = None,
) -> None:
    """Build the distributions of the training data, and every candidate's scores and quality on its test days."""
    from pathlib import Path

    from monitoring.reference.reference import build_reference
    from shortlist.spec.data import Data
    from shortlist.spec.features import Features
    from shortlist.spec.monitoring import Monitoring
    from shortlist.tracking.artefact_metadata import read_metadata, write_metadata
    from shortlist.tracking.steps import step
    from shortlist.training.ensembles import ensemble_artefacts

    with step("build_reference_profile") as running_step:
        declared = Data.model_validate_json(data), Features.model_validate_json(features)
        scores = scores + ensemble_artefacts(ensembles, "scores")
        served = {
            read_metadata(artefact, "model"): Path(artefact.path)
            for artefact in scores
            if read_metadata(artefact, "role") == "candidate"
        }
        settings = Monitoring.model_validate_json(monitoring)
        inputs = Path(valid_log.path), Path(fitted.path)
        build_reference(name, *declared, settings, *inputs, served, Path(reference.path))
    write_metadata(reference, step=running_step.record)
