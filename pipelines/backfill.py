"""Corrected days of the log, counted again for the features of the champion."""

from typing import Any

from kfp import dsl

from components.compare_features import compare_features
from components.find_served_features import find_served_features
from components.publish_features import publish_features
from components.recount_days import recount_days
from pipelines.log_steps import log_in_one_pod
from pipelines.parameters import described
from pipelines.steps import add_step


@dsl.pipeline(name="shortlist-backfill", description="Corrected days of the log, counted again")
@described
def backfill(
    name: str,
    data: str,
    features: str,
    slices: list,
    skew_rows: int,
    runtime: str,
    log: dict,
    stores: str,
    code: str,
    first_day: str,
    last_day: str,
    publish: bool = False,
) -> None:
    """Count the days of a range whose rows changed again, say what that changes, and publish it where that is asked."""
    wanted: dict[str, Any] = {"name": name, "data": data, "features": features, "stores": stores, "code": code}
    served = add_step(find_served_features, cached=False, **wanted)
    common: dict[str, Any] = {"runtime": runtime, "code": code}
    moments = {"now": served.outputs["now"], "until": ""}
    made = log_in_one_pod({"data": data, **common}, log, served.outputs["collected"], moments)
    days = {"first_day": first_day, "last_day": last_day, "previous": served.outputs["previous"], "code": code}
    fitted = add_step(
        recount_days,
        data=served.outputs["data"],
        features=served.outputs["features"],
        slices=slices,
        runtime=runtime,
        **days,
        valid_log=made.valid_log,
    )
    # What servers read, and which models there are, is not in its parameters.
    compared = add_step(
        compare_features, cached=False, name=name, stores=stores, **days, fitted=fitted.outputs["fitted"]
    )
    with dsl.If(publish == True, name="publish"):  # noqa: E712 - Kubeflow builds the condition from it
        add_step(
            publish_features,
            cached=False,
            name=name,
            skew_rows=skew_rows,
            stores=stores,
            version=served.outputs["version"],
            **common,
            valid_log=made.valid_log,
            fitted=fitted.outputs["fitted"],
            replaces=served.outputs["previous"],
        ).after(compared)
