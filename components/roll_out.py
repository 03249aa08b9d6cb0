"""Kubeflow wrapper of models.deployment: the blessed version reaches traffic, where there is a stack to serve it."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def roll_out(version: str, name: str, serving: str, gates: str, runtime: str, stores: str, code: str) -> str:
    """Roll the version out as a canary and return the verdict; without a version or a stack, say what is missing."""
    from models.deployment import Deployer
    from models.training import Origin
    from shortlist.tracking.steps import note, step

    with step("roll_out"):
        deployer = Deployer.parse(Origin(name=name, stores=stores), serving, gates, runtime)
        verdict = deployer.after_training(version)
        note(verdict)
    return verdict
