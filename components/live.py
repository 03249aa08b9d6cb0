"""Steps that read live traffic: collected rows, monitoring, and the decision to train."""

from typing import NamedTuple

from kfp import dsl


def collect(name: str, data: str, serving: str, runtime: str, stores: str, code: str) -> int:
    """Publish rows that are due in batches, exactly once; return their number, 0 where the spec collects nothing."""
    from shortlist.collecting.collector import Collector
    from shortlist.spec.data import Data
    from shortlist.spec.runtime import Runtime
    from shortlist.spec.serving import Serving
    from shortlist.tracking.steps import note, step

    with step("collect") as running_step:
        declared = Data.model_validate_json(data)
        if not declared.live.collect:
            return 0
        chunk_rows = Runtime.model_validate_json(runtime).chunk_rows
        collected = Collector(name, stores, declared, Serving.model_validate_json(serving), chunk_rows).collect()
        note("\n".join(collected.lines))
        running_step.rows = collected.rows
    return collected.rows


def check_live_traffic(
    name: str,
    monitoring: str,
    gates: str,
    serving: str,
    data: str,
    log: dict,
    stores: str,
    code: str,
    decision: dsl.Output[dsl.Artifact],
    ordering: str = "",
) -> NamedTuple("Check", [("Output", bool), ("cause", dict)]):  # type: ignore[valid-type]
    """Evaluate new windows, decide, alert, and draw pages; return whether to retrain, True for one of concurrent runs.

    The output is named Output because kfp.local resolves no other name in a condition.
    """
    from pathlib import Path

    from monitoring.monitoring_job import MonitoringJob
    from shortlist.spec.data import Data
    from shortlist.spec.gates import Gates
    from shortlist.spec.monitoring import Monitoring
    from shortlist.spec.ordering import Ordering
    from shortlist.spec.serving import Serving
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.pipeline_run import pipeline_name
    from shortlist.tracking.steps import note, step

    with step("check_live_traffic") as running_step:
        slices = Gates.model_validate_json(gates).slice_columns
        sections = Monitoring.model_validate_json(monitoring), slices, Serving.model_validate_json(serving)
        watch = MonitoringJob(name, stores, *sections, Ordering.model_validate_json(ordering or "{}"))
        monitoring_run = watch.check(digest="" if Data.model_validate_json(data).live.collect else log["digest"])
        running_step.rows = sum(report.rows for report in monitoring_run.reports)
        note("\n".join(monitoring_run.lines))
        retrain = watch.begin_training(monitoring_run, run=pipeline_name())
    write_metadata(decision, step=running_step.record)
    if monitoring_run.decision is None:
        return (False, {})
    Path(decision.path).write_text(monitoring_run.decision.model_dump_json(indent=2))
    return (retrain, monitoring_run.decision.cause)


def claim_moment(
    name: str,
    monitoring: str,
    cron: str,
    stores: str,
    code: str,
) -> NamedTuple("Due", [("Output", bool), ("cause", dict)]):  # type: ignore[valid-type]
    """Record the start of the newest scheduled training; return whether this run trains, and the cause.

    The output is named Output because kfp.local resolves no other name in a condition.
    """
    from datetime import UTC, datetime

    from monitoring.retraining.training_starts import begin_scheduled_training
    from monitoring.store.monitoring_store import open_monitoring_store
    from shortlist.spec.monitoring import Monitoring
    from shortlist.tracking.steps import note, step

    with step("claim_moment"):
        policy = Monitoring.model_validate_json(monitoring).retrain
        may_train, decision = begin_scheduled_training(
            open_monitoring_store(stores, name), cron, policy, datetime.now(UTC)
        )
        note(decision.reasons[0] if may_train else f"Nothing is trained: {decision.reasons[0]}.")
    return (may_train, decision.cause)
