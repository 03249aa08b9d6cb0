"""Kubeflow wrapper of shortlist.tracking.mlflow_store: what always happens last."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def close_run(name: str, stores: str, key: str, status: dsl.PipelineTaskFinalStatus) -> None:
    """Mark what a failed pipeline left open as failed: MLflow runs, and the retraining that a decision waits for."""
    from shortlist.tracking.steps import step

    with step("close_run"):
        if status.state != "SUCCEEDED":
            from models.training import Origin
            from monitoring.book import book_of

            Origin(name=name, stores=stores).tracker.close_unfinished()
            if key:
                book_of(stores, name).give_up(key, f"the step {status.error_message or 'unknown'} failed")
