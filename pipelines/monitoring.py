"""From live traffic, or from the clock, to rows and a decision, and to a new training when that is decided."""

from collections.abc import Callable
from typing import Any

from kfp import dsl

from components.check_live_traffic import check_live_traffic
from components.claim_moment import claim_moment
from components.collect import collect
from pipelines.training import training, training_wide


def monitoring_graph(*, wide: bool, by_clock: bool = False) -> Callable[..., Any]:
    """Return the watching graph, or that of the schedule's trainings.

    Args:
        wide: Whether its training is the wide one.
        by_clock: Whether a moment of the schedule decides, and not a look at live traffic. Either way the decision is
            one of the book's, so that at most one training is running.
    """
    train = training_wide if wide else training
    base = "shortlist-scheduled-retraining" if by_clock else "shortlist-monitoring"

    @dsl.pipeline(
        name=f"{base}-wide" if wide else base,
        description=f"From {'the clock' if by_clock else 'live traffic'} to a decision, and to a new training",
    )
    def monitoring(
        name: str,
        monitoring: str,
        data: str,
        features: str,
        models: list,
        gates: str,
        slices: list,
        skew_rows: int,
        serving: str,
        runtime: str,
        cluster: str,
        location: str,
        input_digest: str,
        stores: str,
        code: str,
        now: str = "",
        previous: str = "newest",
        cron: str = "",
        retrieval: str = "",
    ) -> None:
        """Collect what is due, and decide once; where that is to train, run the whole training graph with its reasons.

        Args:
            name: Name of the spec.
            monitoring: The spec's section, as canonical JSON.
            data: As for the training graph; so are all that follow.
            features: Likewise.
            models: Likewise.
            gates: Likewise.
            slices: Likewise.
            skew_rows: Likewise.
            serving: Likewise.
            runtime: Likewise.
            cluster: Likewise.
            location: Likewise.
            input_digest: Likewise.
            stores: Likewise.
            code: Likewise.
            now: Likewise.
            previous: Likewise.
            cron: Expression of the schedule, five fields; of the graph that the clock starts.
            retrieval: As for the training graph.
        """
        collected = collect(name=name, data=data, serving=serving, runtime=runtime, stores=stores, code=code)
        collected.set_display_name("collect").set_caching_options(False)
        if by_clock:
            seen = claim_moment(name=name, monitoring=monitoring, cron=cron, stores=stores, code=code)
        else:
            seen = check_live_traffic(
                name=name, monitoring=monitoring, slices=slices, serving=serving, stores=stores, code=code
            )
        seen.set_display_name("claim_moment" if by_clock else "check_live_traffic").set_caching_options(False)
        seen.after(collected)
        with dsl.If(seen.outputs["Output"] == True, name="retrain"):  # noqa: E712 - Kubeflow builds the condition from it
            train(
                name=name,
                data=data,
                features=features,
                models=models,
                gates=gates,
                slices=slices,
                skew_rows=skew_rows,
                monitoring=monitoring,
                serving=serving,
                runtime=runtime,
                cluster=cluster,
                location=location,
                input_digest=input_digest,
                stores=stores,
                code=code,
                now=now,
                trigger="schedule" if by_clock else "drift",
                reasons=seen.outputs["reasons"],
                key=seen.outputs["key"],
                until=seen.outputs["until"],
                previous=previous,
                retrieval=retrieval,
            )

    graph: Callable[..., Any] = monitoring
    return graph


monitoring = monitoring_graph(wide=False)
monitoring_wide = monitoring_graph(wide=True)
scheduled_retraining = monitoring_graph(wide=False, by_clock=True)
scheduled_retraining_wide = monitoring_graph(wide=True, by_clock=True)
