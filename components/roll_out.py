"""Kubeflow wrapper of models.deployment: the blessed version reaches traffic, where there is a stack to serve it."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def roll_out(version: str, name: str, serving: str, gates: str, runtime: str, stores: str, key: str, code: str) -> str:
    """Roll the version out as a canary and return the verdict; without a version or a stack, say what is missing."""
    from models.deployment import Deployer
    from models.training import Origin
    from monitoring.book import book_of
    from shortlist.tracking.steps import note, step

    with step("roll_out"):
        deployer = Deployer.parse(Origin(name=name, stores=stores), serving, gates, runtime)
        ending = deployer.after_training(version)
        note(ending.sentence)
        if key:  # a decision started this training, and waits to hear of it
            book_of(stores, name).finish(key, ending.state, ending.version, ending.sentence)
    return ending.sentence
