"""From live traffic to a decision, and to a new training when that is decided: the watching graph."""

from collections.abc import Callable
from typing import Any

from kfp import dsl

from components.look import look
from pipelines.training import training, training_wide


def watching_graph(*, wide: bool) -> Callable[..., Any]:
    """Return the watching graph.

    Args:
        wide: Whether its training is the wide one.
    """
    train = training_wide if wide else training

    @dsl.pipeline(
        name="shortlist-drift-watch-wide" if wide else "shortlist-drift-watch",
        description="From live traffic to a decision, and to a new training",
    )
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
        cluster: str,
        distributed: str,
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
            cluster: Likewise.
            distributed: Likewise.
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
            train(
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
                cluster=cluster,
                distributed=distributed,
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

    graph: Callable[..., Any] = drift_watch
    return graph


drift_watch = watching_graph(wide=False)
drift_watch_wide = watching_graph(wide=True)
