"""Kubeflow wrapper of shortlist.training.served_features: the features that a refresh counts."""

from typing import NamedTuple

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def find_served_features(name: str, data: str, features: str, stores: str, code: str) -> NamedTuple(  # type: ignore[valid-type]
    "Served",
    [
        ("data", str),
        ("features", str),
        ("previous", str),
        ("version", str),
        ("collected", str),
        ("now", str),
        ("step", str),
    ],
):
    """Return the champion's features, the fit that servers read now, its version, and the rows collected until now.

    Also the time that is the reference of freshness rules, empty where no rule needs it.
    """
    from datetime import UTC, datetime

    from shortlist.data.collected import CollectedRows
    from shortlist.data.until import freshness_moment
    from shortlist.spec.data import Data
    from shortlist.spec.features import Features
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import step
    from shortlist.training.served_features import find_served_features

    with step("find_served_features") as running_step:
        context = RunContext(name=name, stores=stores)
        declared = Data.model_validate_json(data)
        served = find_served_features(context, declared, Features.model_validate_json(features))
        collected = CollectedRows.describe_newest(declared, stores, name)
        now = freshness_moment(declared, datetime.now(UTC))
    return (*served, collected, now, running_step.json)
