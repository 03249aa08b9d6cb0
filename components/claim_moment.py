"""Kubeflow wrapper of monitoring.retraining.training_starts: a scheduled training begins unless another is running."""

from typing import NamedTuple

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
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
