"""Kubeflow wrapper of monitoring.retraining.moments: a submitted training begins, where no other is running."""

from typing import NamedTuple

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def claim_training(
    name: str,
    trigger: str,
    key: str,
    until: str,
    stores: str,
    code: str,
) -> NamedTuple("Claimed", [("Output", bool), ("key", str), ("reason", str)]):  # type: ignore[valid-type]
    """Note that a person's training begins; return whether this run is the one to train, and the key of its record.

    What a decision started was noted before. The answer is named Output because kfp.local resolves no other name in a
    condition.
    """
    import sys
    from datetime import UTC, datetime

    from monitoring.monitoring_store import open_monitoring_store
    from monitoring.retraining.moments import begin_submitted
    from shortlist.tracking.steps import note, step

    with step("claim_training"):
        begun, own, reason = True, key, ""
        if trigger == "manual":
            moment = datetime.fromisoformat(until) if until else None
            begun, decision = begin_submitted(open_monitoring_store(stores, name), key, moment, datetime.now(UTC))
            own = decision.key if begun and decision is not None else ""
            if not begun and decision is not None:
                reason = f"Nothing is trained: {decision.reasons[0]}."
                note(reason)
                sys.stdout.write(f"{reason}\n")
    return (begun, own, reason)
