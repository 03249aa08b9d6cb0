"""Kubeflow wrapper of pipelines' page: everything a person wants to see of a run."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def report(
    arguments: dict,
    started: str,
    version: str,
    raw_log: dsl.Input[dsl.Dataset],
    valid_log: dsl.Input[dsl.Dataset],
    quarantine: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    table: dsl.Input[dsl.Dataset],
    skew: dsl.Input[dsl.Dataset],
    champion: dsl.Input[dsl.Dataset],
    verdict: dsl.Input[dsl.Dataset],
    xgboost: dsl.Input[dsl.Model],
    xgboost_scores: dsl.Input[dsl.Dataset],
    dlrm: dsl.Input[dsl.Model],
    dlrm_scores: dsl.Input[dsl.Dataset],
    popularity: dsl.Input[dsl.Model],
    popularity_scores: dsl.Input[dsl.Dataset],
    logistic: dsl.Input[dsl.Model],
    logistic_scores: dsl.Input[dsl.Dataset],
    page: dsl.Output[dsl.HTML],
    summary: dsl.Output[dsl.Dataset],
) -> None:
    """Write the page and the machine-readable summary of the run."""
    from pathlib import Path

    from shortlist.tracking.steps import step

    with step("report"):
        pass
