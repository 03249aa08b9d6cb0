"""Kubeflow wrapper of shortlist.deployment.deployer: a canary rollout of the blessed version."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def roll_out(
    version: str,
    name: str,
    data: str,
    serving: str,
    gates: str,
    runtime: str,
    cluster: str,
    stores: str,
    cause: dict,
    code: str,
) -> str:
    """Roll the version out as a canary; return the verdict or, without a version or a stack, what is missing."""
    from monitoring.store.monitoring_store import open_monitoring_store
    from shortlist.deployment.deployer import Deployer
    from shortlist.spec.cluster import Cluster
    from shortlist.spec.data import Data
    from shortlist.spec.gates import Gates
    from shortlist.spec.runtime import Runtime
    from shortlist.spec.serving import Serving
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import note, step

    with step("roll_out"):
        runtime_section = Runtime.model_validate_json(runtime).model_copy(
            update={"cluster": Cluster.model_validate_json(cluster)}
        )
        sections = Serving.model_validate_json(serving), Gates.model_validate_json(gates)
        labels = Data.model_validate_json(data).labels
        ending = Deployer(RunContext(name=name, stores=stores), *sections, runtime_section, labels).after_training(
            version
        )
        note(ending.sentence)
        if cause.get("key"):  # a decision started this training, and waits to hear of it
            open_monitoring_store(stores, name).finish(cause["key"], ending.state, ending.version, ending.sentence)
    return ending.sentence
