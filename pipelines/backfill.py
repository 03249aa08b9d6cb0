"""Corrected days of the log, counted again for the features of the champion."""

from kfp import dsl

from components.compare_features import compare_features
from components.find_served_features import find_served_features
from components.ingest import ingest
from components.publish_features import publish_features
from components.recount_days import recount_days
from components.validate import validate


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
        name: As for the training graph; so are all that follow.
        data: Likewise.
        features: Likewise; where the champion was trained with others, these are counted.
        slices: Likewise.
        skew_rows: Likewise.
        runtime: Likewise.
        location: Likewise.
        input_digest: Likewise.
        stores: Likewise.
        code: Likewise.
        first_day: First day of the range, ISO 8601, in the log's own timezone.
        last_day: Last day of the range.
        publish: Whether servers are to read the result.
        now: As for the training graph.
        until: Likewise.
    """
    served = find_served_features(name=name, data=data, features=features, stores=stores, code=code)
    served.set_display_name("find_served_features").set_caching_options(False)
    common = {"runtime": runtime, "code": code}
    days = {"first_day": first_day, "last_day": last_day, "previous": served.outputs["previous"], "code": code}
    log = ingest(
        data=data, **common, location=location, input_digest=input_digest, collected=served.outputs["collected"]
    )
    valid = validate(data=data, **common, now=now, until=until, raw_log=log.outputs["raw_log"])
    fitted = recount_days(
        data=served.outputs["data"],
        features=served.outputs["features"],
        slices=slices,
        runtime=runtime,
        **days,
        valid_log=valid.outputs["valid_log"],
    )
    compared = compare_features(name=name, stores=stores, **days, fitted=fitted.outputs["fitted"])
    # What servers read, and which models there are, is not in its parameters.
    compared.set_display_name("compare_features").set_caching_options(False)
    with dsl.If(publish == True, name="publish"):  # noqa: E712 - Kubeflow builds the condition from it
        publish_features(
            name=name,
            skew_rows=skew_rows,
            stores=stores,
            version=served.outputs["version"],
            **common,
            valid_log=valid.outputs["valid_log"],
            fitted=fitted.outputs["fitted"],
            replaces=served.outputs["previous"],
        ).set_display_name("publish_features").set_caching_options(False).after(compared)
