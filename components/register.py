"""Kubeflow wrapper of models.registry: a blessed model gets a version."""

from typing import NamedTuple

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def register(
    name: str,
    stores: str,
    code: str,
    against: str,
    made_from: str,
    verdict: dsl.Input[dsl.Dataset],
    xgboost: dsl.Input[dsl.Model],
    dlrm: dsl.Input[dsl.Model],
    reference: dsl.Input[dsl.Dataset],
) -> NamedTuple("Registered", [("version", str), ("step", str)]):  # type: ignore[valid-type]
    """Verify the blessing, register the blessed model as candidate, and return its version."""
    from pathlib import Path

    from models.registry import register_blessed
    from models.repeating import Standing
    from models.training import Origin
    from shortlist.tracking.steps import step

    with step("register") as this:
        artefacts = {"xgboost": xgboost, "dlrm": dlrm}
        models = {kind: Path(model.path) for kind, model in artefacts.items()}
        runs = {kind: model.metadata["mlflow_run"] for kind, model in artefacts.items()}
        inputs = Path(verdict.path), models, runs, Path(reference.path)
        version = register_blessed(Origin(name=name, stores=stores), *inputs, Standing(against, made_from).tags())
    return (version, this.json)
