"""Newer statistics for the features of the champion, without a training."""

from typing import Any

from kfp import dsl

from components.find_served_features import find_served_features
from components.fit_features import fit_features
from components.publish_features import publish_features
from pipelines.log_steps import log_in_one_pod
from pipelines.steps import add_step


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
        name: Name of the spec.
        data: Section `data` of the spec, as canonical JSON.
        features: Section `features` of the spec, as canonical JSON.
        slices: Columns by which the gates slice scores: a part of `gates` that the feature table needs too.
        skew_rows: Rows that are compared with Feast: a part of `gates` that no gate reads.
        runtime: Section `runtime` of the spec, as canonical JSON, without its part `cluster`.
        location: Where the user's files are; empty for a generated log.
        input_digest: Digest of those files; empty when only the run looks at them.
        stores: Where MLflow, Feast and the records of monitoring are kept.
        code: Digest of the source code: results of other code are not reused.
        now: Moment (ISO 8601) against which freshness is judged; empty for the validating step's own clock.
        until: Moment (ISO 8601) from which on no row is read; empty for none.
    """
    wanted: dict[str, Any] = {"name": name, "data": data, "features": features, "stores": stores, "code": code}
    served = add_step(find_served_features, cached=False, **wanted)
    common: dict[str, Any] = {"runtime": runtime, "code": code}
    files, moments = {"location": location, "input_digest": input_digest}, {"now": now, "until": until}
    log = log_in_one_pod({"data": data, **common}, files, served.outputs["collected"], moments)
    fitted = add_step(
        fit_features,
        data=served.outputs["data"],
        features=served.outputs["features"],
        slices=slices,
        previous=served.outputs["previous"],
        **common,
        valid_log=log.valid_log,
    )
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
    )
