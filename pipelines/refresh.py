"""Live traffic becomes newer statistics of the champion's features, and newer candidates, without a training."""

from typing import Any

from kfp import dsl

from components.collect import collect
from components.find_served_features import find_served_features
from components.fit_features import fit_features
from components.publish_features import publish_features
from components.refresh_releases import refresh_releases
from pipelines.log_steps import log_in_one_pod
from pipelines.parameters import described
from pipelines.steps import add_step


@dsl.pipeline(name="shortlist-refresh", description="Newer statistics and candidates for the champion")
@described
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
    """Collect what is due of live traffic, count what is new in the log, and publish it.

    Feast's online store and the snapshot of every server get it.

    Then the sources of candidates are brought up to the same log: a new item is scored with features that know it.
    """
    wanted: dict[str, Any] = {"name": name, "data": data, "stores": stores, "code": code}
    collected = add_step(collect, cached=False, **wanted, serving=serving, runtime=runtime)
    # Which rows were collected, and what servers read, is not in its parameters.
    served = add_step(find_served_features, cached=False, **wanted, features=features).after(collected)
    common: dict[str, Any] = {"runtime": runtime, "code": code}
    moments = {"now": served.outputs["now"], "until": ""}
    made = log_in_one_pod({"data": data, **common}, log, served.outputs["collected"], moments)
    fitted = add_step(
        fit_features,
        data=served.outputs["data"],
        features=served.outputs["features"],
        slices=slices,
        previous=served.outputs["previous"],
        **common,
        valid_log=made.valid_log,
    )
    published = add_step(
        publish_features,
        cached=False,
        name=name,
        skew_rows=skew_rows,
        stores=stores,
        version=served.outputs["version"],
        **common,
        valid_log=made.valid_log,
        fitted=fitted.outputs["fitted"],
    )
    # Which releases there are is not in its parameters.
    add_step(
        refresh_releases,
        cached=False,
        name=name,
        data=served.outputs["data"],
        log=log,
        stores=stores,
        **common,
        valid_log=made.valid_log,
    ).after(published)
