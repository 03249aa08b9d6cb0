"""The refresh graph: newer statistics of the champion's features, and newer candidates, without a training."""

from typing import Any

from kfp import dsl

from components.collect import collect
from components.find_served_features import find_served_features
from components.fit_features import fit_features
from components.publish_features import publish_features
from components.refresh_releases import refresh_releases
from pipelines.log_steps import add_log_steps
from pipelines.parameters import describe_parameters
from pipelines.steps import add_step


@dsl.pipeline(name="shortlist-refresh", description="Newer statistics and candidates for the champion")
@describe_parameters
def refresh(
    name: str,
    data: str,
    features: str,
    slices: list,
    serving: str,
    skew_rows: int,
    runtime: str,
    log: dict,
    stores: str,
    code: str,
) -> None:
    """Collect rows of live traffic that are due, count new days of the log, and publish the statistics.

    They go to Feast's online store and to the snapshot of every server.

    Then the sources of candidates are updated to the same log, so that a new item is scored with its own features.
    """
    common_inputs: dict[str, Any] = {"name": name, "data": data, "stores": stores, "code": code}
    collected = add_step(collect, cached=False, **common_inputs, serving=serving, runtime=runtime)
    # Its parameters do not contain which rows were collected, nor what servers read.
    served = add_step(find_served_features, cached=False, **common_inputs, features=features).after(collected)
    common: dict[str, Any] = {"runtime": runtime, "code": code}
    moments = {"now": served.outputs["now"], "until": ""}
    log_steps = add_log_steps({"data": data, **common}, log, served.outputs["collected"], moments)
    fitted = add_step(
        fit_features,
        data=served.outputs["data"],
        features=served.outputs["features"],
        slices=slices,
        previous=served.outputs["previous"],
        **common,
        valid_log=log_steps.valid_log,
    )
    published = add_step(
        publish_features,
        cached=False,
        name=name,
        skew_rows=skew_rows,
        stores=stores,
        version=served.outputs["version"],
        **common,
        valid_log=log_steps.valid_log,
        fitted=fitted.outputs["fitted"],
    )
    # Its parameters do not contain which releases there are.
    add_step(
        refresh_releases,
        cached=False,
        name=name,
        data=served.outputs["data"],
        log=log,
        stores=stores,
        **common,
        valid_log=log_steps.valid_log,
    ).after(published)
