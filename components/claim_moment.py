"""Kubeflow wrapper of monitoring.retraining.moments: the schedule's training begins, where no other is running."""

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
    """Note that the training of the schedule's newest moment begins; return whether this run is to train, and why.

    The answer is named Output because kfp.local resolves no other name in a condition.
    """
    from datetime import UTC, datetime

    from monitoring.retraining.moments import begin_moment
    from monitoring.store.monitoring_store import open_monitoring_store
    from shortlist.spec.monitoring import Monitoring
    from shortlist.tracking.steps import note, step

    with step("claim_moment"):
        policy = Monitoring.model_validate_json(monitoring).retrain
        begun, decision = begin_moment(open_monitoring_store(stores, name), cron, policy, datetime.now(UTC))
        note(decision.reasons[0] if begun else f"Nothing is trained: {decision.reasons[0]}.")
    return (begun, decision.cause)
