"""From live traffic, or from the clock, to rows and a decision, and to a new training when that is decided."""

from collections.abc import Callable
from typing import Any

from kfp import dsl

from components.check_live_traffic import check_live_traffic
from components.claim_moment import claim_moment
from components.collect import collect
from pipelines.steps import add_step
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
        filters: str = "",
        ordering: str = "",
        lists: str = "",
    ) -> None:
        """Collect what is due, and decide once; where that is to train, run the whole training graph with its reasons.

        Args:
            name: Name of the spec.
            monitoring: Section `monitoring` of the spec, as canonical JSON.
            data: Section `data` of the spec, as canonical JSON.
            features: Section `features` of the spec, as canonical JSON.
            models: The declared models, each as a JSON text.
            gates: Section `gates` of the spec, as canonical JSON, with the name of the baseline.
            slices: Columns by which the gates slice scores: a part of `gates` that the feature table needs too.
            skew_rows: Rows that are compared with Feast: a part of `gates` that no gate reads.
            serving: Section `serving` of the spec, as canonical JSON.
            runtime: Section `runtime` of the spec, as canonical JSON, without its part `cluster`.
            cluster: Part `cluster` of section `runtime`, as canonical JSON.
            location: Where the user's files are; empty for a generated log.
            input_digest: Digest of those files; empty when only the run looks at them.
            stores: Where MLflow, Feast and the records of monitoring are kept.
            code: Digest of the source code: results of other code are not reused.
            now: Moment (ISO 8601) against which freshness is judged; empty for the validating step's own clock.
            previous: Path of earlier fitted features whose days are not counted again, or `newest`; empty for none.
            cron: Expression of the schedule, five fields; only of the graph that the clock starts.
            retrieval: Section `retrieval` of the spec, as canonical JSON; empty for none.
            filters: Section `filters` of the spec, as canonical JSON; empty for none.
            ordering: Section `ordering` of the spec, as canonical JSON; empty for none.
            lists: Digest of the files that filters read; empty for none.
        """
        where = {"name": name, "stores": stores, "code": code}
        collected = add_step(collect, cached=False, **where, data=data, serving=serving, runtime=runtime)
        if by_clock:
            seen = add_step(claim_moment, cached=False, **where, monitoring=monitoring, cron=cron)
        else:
            looked_at = {"monitoring": monitoring, "slices": slices, "serving": serving}
            seen = add_step(check_live_traffic, cached=False, **where, **looked_at)
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
                filters=filters,
                ordering=ordering,
                lists=lists,
            )

    graph: Callable[..., Any] = monitoring
    return graph


monitoring = monitoring_graph(wide=False)
monitoring_wide = monitoring_graph(wide=True)
scheduled_retraining = monitoring_graph(wide=False, by_clock=True)
scheduled_retraining_wide = monitoring_graph(wide=True, by_clock=True)
