"""Kubeflow wrapper of monitoring.retraining.moments: a submitted training begins, where no other is running."""

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
    """Note that a person's training begins; return whether this run is to train, and its cause with the record's key.

    What a decision started was noted before. The answer is named Output because kfp.local resolves no other name in a
    condition.
    """
    import sys
    from datetime import UTC, datetime

    from monitoring.retraining.moments import begin_submitted
    from monitoring.store.monitoring_store import open_monitoring_store
    from shortlist.tracking.lineage import TrainingTrigger
    from shortlist.tracking.steps import note, step

    with step("claim_training"):
        why = TrainingTrigger.parse(cause)
        begun, own, reason = True, why.key, ""
        if why.trigger == "manual":
            moment = datetime.fromisoformat(why.until) if why.until else None
            begun, decision = begin_submitted(open_monitoring_store(stores, name), why.key, moment, datetime.now(UTC))
            own = decision.key if begun and decision is not None else ""
            if not begun and decision is not None:
                reason = f"Nothing is trained: {decision.reasons[0]}."
                note(reason)
                sys.stdout.write(f"{reason}\n")
    return (begun, {**cause, "key": own}, reason)
