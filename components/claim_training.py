"""Kubeflow wrapper of monitoring.retraining.training_starts: a submitted training begins, where no other is running."""

from typing import NamedTuple

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def claim_training(
    name: str,
    cause: dict,
    stores: str,
    code: str,
) -> NamedTuple("Claimed", [("Output", bool), ("cause", dict), ("reason", str)]):  # type: ignore[valid-type]
    """Record the start of a person's training; return whether this run trains, and its cause with the record's key.

    A training that a decision starts is recorded before. The output is named Output because kfp.local resolves no other
    name in a condition.
    """
    import sys
    from datetime import UTC, datetime

    from monitoring.retraining.training_starts import begin_submitted_training
    from monitoring.store.monitoring_store import open_monitoring_store
    from shortlist.tracking.lineage import TrainingTrigger
    from shortlist.tracking.steps import note, step

    with step("claim_training"):
        trigger = TrainingTrigger.parse(cause)
        may_train, key, reason = True, trigger.key, ""
        if trigger.trigger == "manual":
            moment = datetime.fromisoformat(trigger.until) if trigger.until else None
            may_train, decision = begin_submitted_training(
                open_monitoring_store(stores, name), trigger.key, moment, datetime.now(UTC)
            )
            key = decision.key if may_train and decision is not None else ""
            if not may_train and decision is not None:
                reason = f"Nothing is trained: {decision.reasons[0]}."
                note(reason)
                sys.stdout.write(f"{reason}\n")
    return (may_train, {**cause, "key": key}, reason)
