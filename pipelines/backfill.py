"""Corrected days of the log, counted again for the features of the champion."""

from typing import Any

from kfp import dsl

from components.compare_features import compare_features
from components.find_served_features import find_served_features
from components.publish_features import publish_features
from components.recount_days import recount_days
from pipelines.log_steps import log_in_one_pod
from pipelines.steps import add_step


@dsl.pipeline(name="shortlist-backfill", description="Corrected days of the log, counted again")
def backfill(
    name: str,
    data: str,
    features: str,
    slices: list,
    skew_rows: int,
    runtime: str,
    location: str,
    input_digest: str,
    stores: str,
    code: str,
    first_day: str,
    last_day: str,
    publish: bool = False,
    now: str = "",
    until: str = "",
) -> None:
    """Count the days of a range whose rows changed again, say what that changes, and publish it where that is asked.

    Args:
        name: Name of the spec.
        data: Section `data` of the spec, as canonical JSON.
        features: Section `features` of the spec, as canonical JSON; the one of the champion is counted.
        slices: Columns by which the gates slice scores: a part of `gates` that the feature table needs too.
        skew_rows: Rows that are compared with Feast: a part of `gates` that no gate reads.
        runtime: Section `runtime` of the spec, as canonical JSON, without its part `cluster`.
        location: Where the user's files are; empty for a generated log.
        input_digest: Digest of those files; empty when only the run looks at them.
        stores: Where MLflow, Feast and the records of monitoring are kept.
        code: Digest of the source code: results of other code are not reused.
        first_day: First day of the range, ISO 8601, in the time zone of the log.
        last_day: Last day of the range.
        publish: Whether servers are to read the result.
        now: Moment (ISO 8601) against which freshness is judged; empty for the validating step's own clock.
        until: Moment (ISO 8601) from which on no row is read; empty for none.
    """
    wanted: dict[str, Any] = {"name": name, "data": data, "features": features, "stores": stores, "code": code}
    served = add_step(find_served_features, cached=False, **wanted)
    common: dict[str, Any] = {"runtime": runtime, "code": code}
    files, moments = {"location": location, "input_digest": input_digest}, {"now": now, "until": until}
    log = log_in_one_pod({"data": data, **common}, files, served.outputs["collected"], moments)
    days = {"first_day": first_day, "last_day": last_day, "previous": served.outputs["previous"], "code": code}
    fitted = add_step(
        recount_days,
        data=served.outputs["data"],
        features=served.outputs["features"],
        slices=slices,
        runtime=runtime,
        **days,
        valid_log=log.valid_log,
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
            valid_log=log.valid_log,
            fitted=fitted.outputs["fitted"],
            replaces=served.outputs["previous"],
        ).after(compared)
