"""Kubeflow wrapper of models.registry: a blessed model gets a version."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def register(
    name: str,
    stores: str,
    code: str,
    verdict: dsl.Input[dsl.Dataset],
    xgboost: dsl.Input[dsl.Model],
    dlrm: dsl.Input[dsl.Model],
) -> str:
    """Verify the blessing, register the blessed model as candidate, and return its version."""
    from pathlib import Path

    from models.registry import register_blessed
    from models.training import Origin
    from shortlist.tracking.steps import step

    with step("register"):
        models = {"xgboost": Path(xgboost.path), "dlrm": Path(dlrm.path)}
        version = register_blessed(Origin(name=name, stores=stores), Path(verdict.path), models)
    return version
