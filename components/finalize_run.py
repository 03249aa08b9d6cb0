"""Kubeflow wrapper of shortlist.tracking.mlflow_store: the exit handler of a run."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def finalize_run(name: str, stores: str, cause: dict, status: dsl.PipelineTaskFinalStatus) -> None:
    """Mark what a failed pipeline left open as failed: MLflow runs, and the retraining that a decision waits for."""
    from shortlist.tracking.steps import failure_of_run, step

    with step("finalize_run"):
        if status.state != "SUCCEEDED":
            from monitoring.store.monitoring_store import open_monitoring_store
            from shortlist.tracking.run_context import RunContext

            reason = failure_of_run(status.error_message)
            RunContext(name=name, stores=stores).tracker.fail_pipeline(reason)
            if cause.get("key"):
                open_monitoring_store(stores, name).mark_failed(cause["key"], reason)
