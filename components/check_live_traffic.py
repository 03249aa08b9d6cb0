"""Kubeflow wrapper of monitoring.monitoring_job: one check of live traffic, and its decision."""

from typing import NamedTuple

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def check_live_traffic(
    name: str, monitoring: str, gates: str, serving: str, stores: str, code: str, decision: dsl.Output[dsl.Artifact]
) -> NamedTuple("Check", [("Output", bool), ("cause", dict)]):  # type: ignore[valid-type]
    """Evaluate new windows, decide, alert, and draw pages; return whether to retrain, True for one of concurrent runs.

    The output is named Output because kfp.local resolves no other name in a condition.
    """
    from pathlib import Path

    from monitoring.monitoring_job import MonitoringJob
    from shortlist.spec.gates import Gates
    from shortlist.spec.monitoring import Monitoring
    from shortlist.spec.serving import Serving
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import note, step

    with step("check_live_traffic") as running_step:
        slices = Gates.model_validate_json(gates).slices
        sampling = Serving.model_validate_json(serving).log.sampling
        watch = MonitoringJob(name, stores, Monitoring.model_validate_json(monitoring), slices, sampling)
        monitoring_run = watch.check()
        running_step.rows = sum(report.rows for report in monitoring_run.reports)
        note("\n".join(monitoring_run.lines))
        retrain = watch.begin_training(monitoring_run, run="")
    write_metadata(decision, step=running_step.record)
    if monitoring_run.decision is None:
        return (False, {})
    Path(decision.path).write_text(monitoring_run.decision.model_dump_json(indent=2))
    return (retrain, monitoring_run.decision.cause)
