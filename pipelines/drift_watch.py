"""From live traffic to a decision, and to a new training when that is decided: the watching graph."""

from kfp import dsl

from components.look import look
from pipelines.training import training


@dsl.pipeline(name="shortlist-drift-watch", description="From live traffic to a decision, and to a new training")
def drift_watch(
    name: str,
    monitoring: str,
    data: str,
    features: str,
    xgboost: str,
    dlrm: str,
    logistic: str,
    gates: str,
    slices: list,
    skew_rows: int,
    serving: str,
    runtime: str,
    location: str,
    input_digest: str,
    stores: str,
    code: str,
    now: str = "",
    previous: str = "newest",
) -> None:
    """Look at live traffic once; where the look decides so, run the whole training graph with its reasons.

    Args:
        name: Name of the spec.
        monitoring: The spec's section, as canonical JSON.
        data: As for the training graph; so are all that follow.
        features: Likewise.
        xgboost: Likewise.
        dlrm: Likewise.
        logistic: Likewise.
        gates: Likewise.
        slices: Likewise.
        skew_rows: Likewise.
        serving: Likewise.
        runtime: Likewise.
        location: Likewise.
        input_digest: Likewise.
        stores: Likewise.
        code: Likewise.
        now: Likewise.
        previous: Likewise.
    """
    seen = look(name=name, monitoring=monitoring, slices=slices, serving=serving, stores=stores, code=code)
    seen.set_display_name("look").set_caching_options(False)
    with dsl.If(seen.outputs["Output"] == True, name="retrain"):  # noqa: E712 - Kubeflow builds the condition from it
        training(
            name=name,
            data=data,
            features=features,
            xgboost=xgboost,
            dlrm=dlrm,
            logistic=logistic,
            gates=gates,
            slices=slices,
            skew_rows=skew_rows,
            monitoring=monitoring,
            serving=serving,
            runtime=runtime,
            location=location,
            input_digest=input_digest,
            stores=stores,
            code=code,
            now=now,
            trigger="drift",
            reasons=seen.outputs["reasons"],
            key=seen.outputs["key"],
            until=seen.outputs["until"],
            previous=previous,
        )
