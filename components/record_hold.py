"""Kubeflow wrapper of models.registry: what is told when every candidate is held."""

from typing import NamedTuple

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
) -> NamedTuple("Held", [("version", str), ("step", str)]):  # type: ignore[valid-type]
    """Write the gates' reasons to the candidates' MLflow runs; there is no version."""
    from pathlib import Path

    from models.registry import record_verdict
    from models.training import Origin
    from shortlist.tracking.steps import step

    with step("register") as this:
        runs = {"xgboost": xgboost.metadata["mlflow_run"], "dlrm": dlrm.metadata["mlflow_run"]}
        record_verdict(Origin(name=name, stores=stores), Path(verdict.path), runs)
    return ("", this.json)
