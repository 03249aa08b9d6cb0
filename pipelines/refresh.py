"""Newer statistics for the features of the champion, without a training."""

from kfp import dsl

from components.find_served_features import find_served_features
from components.fit_features import fit_features
from components.ingest import ingest
from components.publish_features import publish_features
from components.validate import validate


@dsl.pipeline(name="shortlist-refresh", description="Newer statistics for the features of the champion")
def refresh(
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
    now: str = "",
    until: str = "",
) -> None:
    """Count what is new in the log and publish it: Feast's online store, and the snapshot of every server.

    Args:
        name: As for the training graph; so are all that follow.
        data: Likewise.
        features: Likewise; where the champion was trained with others, these are refreshed.
        slices: Likewise.
        skew_rows: Likewise.
        runtime: Likewise.
        location: Likewise.
        input_digest: Likewise.
        stores: Likewise.
        code: Likewise.
        now: Likewise.
        until: Likewise.
    """
    served = find_served_features(name=name, data=data, features=features, stores=stores, code=code)
    served.set_display_name("find_served_features").set_caching_options(False)
    common = {"runtime": runtime, "code": code}
    log = ingest(
        data=data, **common, location=location, input_digest=input_digest, collected=served.outputs["collected"]
    )
    valid = validate(data=data, **common, now=now, until=until, raw_log=log.outputs["raw_log"])
    fitted = fit_features(
        data=served.outputs["data"],
        features=served.outputs["features"],
        slices=slices,
        previous=served.outputs["previous"],
        **common,
        valid_log=valid.outputs["valid_log"],
    )
    publish_features(
        name=name,
        skew_rows=skew_rows,
        stores=stores,
        version=served.outputs["version"],
        **common,
        valid_log=valid.outputs["valid_log"],
        fitted=fitted.outputs["fitted"],
    ).set_display_name("publish_features").set_caching_options(False)
