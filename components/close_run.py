"""Kubeflow wrapper of shortlist.tracking.mlflow_store: what always happens last."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def close_run(name: str, stores: str, status: dsl.PipelineTaskFinalStatus) -> None:
    """Mark MLflow runs that a failed pipeline left open as failed; nothing to do after a success."""
    from shortlist.tracking.steps import step

    with step("close_run"):
        if status.state != "SUCCEEDED":
            from models.training import Origin

            Origin(name=name, stores=stores).tracker.close_unfinished()
