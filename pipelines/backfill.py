"""The backfill graph: recounts corrected days of the log for the features of the champion."""

from typing import Any

from kfp import dsl

from components.compare_features import compare_features
from components.find_served_features import find_served_features
from components.publish_features import publish_features
from components.recount_days import recount_days
from pipelines.log_steps import add_log_steps
from pipelines.parameters import describe_parameters
from pipelines.steps import add_step


@dsl.pipeline(name="shortlist-backfill", description="Corrected days of the log, counted again")
@describe_parameters
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
    """Recount the days of a range whose rows changed, report the changes, and publish them if asked to."""
    common_inputs: dict[str, Any] = {"name": name, "data": data, "features": features, "stores": stores, "code": code}
    served = add_step(find_served_features, cached=False, **common_inputs)
    common: dict[str, Any] = {"runtime": runtime, "code": code}
    moments = {"now": served.outputs["now"], "until": ""}
    log_steps = add_log_steps({"data": data, **common}, log, served.outputs["collected"], moments)
    days = {"first_day": first_day, "last_day": last_day, "previous": served.outputs["previous"], "code": code}
    fitted = add_step(
        recount_days,
        data=served.outputs["data"],
        features=served.outputs["features"],
        slices=slices,
        runtime=runtime,
        **days,
        valid_log=log_steps.valid_log,
    )
    # Its parameters do not contain what servers read, nor which models there are.
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
            valid_log=log_steps.valid_log,
            fitted=fitted.outputs["fitted"],
            replaces=served.outputs["previous"],
        ).after(compared)
