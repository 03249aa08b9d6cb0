"""Kubeflow wrapper of shortlist.deployment.registration: the record of a run in which every candidate is held."""

from typing import NamedTuple

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def record_gate_failures(
    name: str,
    stores: str,
    code: str,
    verdict: dsl.Input[dsl.Dataset],
    trained: list,
    ensembles: list = [],  # noqa: B006 - Kubeflow reads the default, nobody changes it
) -> NamedTuple("Held", [("version", str), ("step", str)]):  # type: ignore[valid-type]
    """Write the gates' reasons to the candidates' MLflow runs; there is no version."""
    import json
    from pathlib import Path

    from shortlist.deployment.registration import record_verdict
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import step

    with step("register") as running_step:
        runs = {model["model"]: model["mlflow_run"] for model in map(json.loads, trained + ensembles)}
        record_verdict(RunContext(name=name, stores=stores), Path(verdict.path), runs)
    return ("", running_step.json)
