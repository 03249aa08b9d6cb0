"""Kubeflow wrapper of models.registry: what is told when every candidate is held."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def record_hold(
    name: str,
    stores: str,
    code: str,
    verdict: dsl.Input[dsl.Dataset],
    xgboost: dsl.Input[dsl.Model],
    dlrm: dsl.Input[dsl.Model],
) -> str:
    """Write the gates' reasons to the candidates' MLflow runs; return "none"."""
    from pathlib import Path

    from models.registry import record_verdict
    from models.training import Origin
    from shortlist.tracking.steps import step

    with step("register"):
        models = {"xgboost": Path(xgboost.path), "dlrm": Path(dlrm.path)}
        record_verdict(Origin(name=name, stores=stores), Path(verdict.path), models)
    return "none"
