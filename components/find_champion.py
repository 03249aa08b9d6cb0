"""Kubeflow wrapper of models.foundations: the serving version and what else a run builds on; its first task."""

from typing import NamedTuple

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def find_champion(
    name: str,
    xgboost: str,
    dlrm: str,
    input_digest: str,
    stores: str,
    trigger: str,
    reasons: list,
    key: str,
    until: str,
    previous: str,
) -> NamedTuple(  # type: ignore[valid-type]
    "Found",
    [("version", str), ("xgboost", str), ("dlrm", str), ("previous", str), ("started", str), ("step", str)],
):
    """Return the version that serves now, the MLflow runs to go on from, the earlier features; and when this began."""
    from datetime import UTC, datetime

    from models.foundations import find_foundations
    from models.training import Origin
    from shortlist.tracking.lineage import Cause
    from shortlist.tracking.steps import step

    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    with step("find_champion") as this:
        cause = Cause.parse(trigger, key, reasons, until)
        origin = Origin(name=name, stores=stores, input_digest=input_digest, cause=cause)
        found = find_foundations(origin, xgboost, dlrm, previous)
    return (*found, started, this.json)
