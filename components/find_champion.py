"""Kubeflow wrapper of models.foundations: whom a run has to beat and what else it builds on; its first task."""

from typing import NamedTuple

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def find_champion(
    name: str,
    data: str,
    features: str,
    xgboost: str,
    dlrm: str,
    gates: str,
    serving: str,
    runtime: str,
    code: str,
    now: str,
    location: str,
    input_digest: str,
    stores: str,
    trigger: str,
    reasons: list,
    key: str,
    until: str,
    previous: str,
) -> NamedTuple(  # type: ignore[valid-type]
    "Found",
    [
        ("version", str),
        ("made_from", str),
        ("xgboost", str),
        ("dlrm", str),
        ("previous", str),
        ("started", str),
        ("step", str),
    ],
):
    """Return the version to beat, what this run is made from, what it goes on from; and when this began."""
    from datetime import UTC, datetime

    from models.foundations import find_foundations
    from models.repeating import standing_of
    from models.training import Origin
    from shortlist.tracking.lineage import Cause
    from shortlist.tracking.steps import step

    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    with step("find_champion") as this:
        cause = Cause.parse(trigger, key, reasons, until)
        origin = Origin(name=name, stores=stores, input_digest=input_digest, cause=cause)
        found = find_foundations(origin, xgboost, dlrm, previous)
        sections = [data, features, xgboost, dlrm, gates, serving, runtime]
        standing = standing_of(origin, found, [*sections, code, now, location])
    return (*standing, found.xgboost, found.dlrm, found.previous, started, this.json)
