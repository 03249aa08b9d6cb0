"""A training that was submitted to a cluster, recorded with all others: the training graph behind its claim."""

from collections.abc import Callable
from typing import Any

from kfp import dsl

from components.claim_training import claim_training
from pipelines.steps import add_step
from pipelines.training import training, training_wide


def submitted_graph(*, wide: bool) -> Callable[..., Any]:
    """Return the graph that a submission starts.

    Args:
        wide: Whether its training is the wide one.
    """
    train = training_wide if wide else training

    @dsl.pipeline(
        name="shortlist-submitted-training-wide" if wide else "shortlist-submitted-training",
        description="From a raw log to a blessed model in front of users, unless another training is running",
    )
    def submitted(
        name: str,
        data: str,
        features: str,
        models: list,
        gates: str,
        slices: list,
        skew_rows: int,
        monitoring: str,
        serving: str,
        runtime: str,
        cluster: str,
        location: str,
        input_digest: str,
        stores: str,
        code: str,
        now: str = "",
        trigger: str = "manual",
        reasons: list = [],  # noqa: B006 - Kubeflow reads the default, nobody changes it
        key: str = "",
        until: str = "",
        previous: str = "",
        retrieval: str = "",
        filters: str = "",
        ordering: str = "",
        lists: str = "",
    ) -> None:
        """Note that the training begins, and run the training graph; end at once where another one is running.

        Args:
            name: Name of the spec.
            data: Section `data` of the spec, as canonical JSON.
            features: Section `features` of the spec, as canonical JSON.
            models: The declared models, each as a JSON text.
            gates: Section `gates` of the spec, as canonical JSON, with the name of the baseline.
            slices: Columns by which the gates slice scores: a part of `gates` that the feature table needs too.
            skew_rows: Rows that are compared with Feast: a part of `gates` that no gate reads.
            monitoring: Section `monitoring` of the spec, as canonical JSON.
            serving: Section `serving` of the spec, as canonical JSON.
            runtime: Section `runtime` of the spec, as canonical JSON, without its part `cluster`.
            cluster: Part `cluster` of section `runtime`, as canonical JSON.
            location: Where the user's files are; empty for a generated log.
            input_digest: Digest of those files; empty when only the run looks at them.
            stores: Where MLflow, Feast and the records of monitoring are kept.
            code: Digest of the source code: results of other code are not reused.
            now: Moment (ISO 8601) against which freshness is judged; empty for the validating step's own clock.
            trigger: What started the run: `manual`, `schedule` or `drift`.
            reasons: Reasons of the decision that started the run.
            key: Key of the decision, or of a person's submission.
            until: Moment (ISO 8601) from which on no row is read; empty for none.
            previous: Path of earlier fitted features whose days are not counted again, or `newest`; empty for none.
            retrieval: Section `retrieval` of the spec, as canonical JSON; empty for none.
            filters: Section `filters` of the spec, as canonical JSON; empty for none.
            ordering: Section `ordering` of the spec, as canonical JSON; empty for none.
            lists: Digest of the files that filters read; empty for none.
        """
        where = {"name": name, "stores": stores, "code": code}
        claimed = add_step(claim_training, cached=False, **where, trigger=trigger, key=key, until=until)
        with dsl.If(claimed.outputs["Output"] == True, name="train"):  # noqa: E712 - Kubeflow builds the condition from it
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
                trigger=trigger,
                reasons=reasons,
                key=claimed.outputs["key"],
                until=until,
                previous=previous,
                retrieval=retrieval,
                filters=filters,
                ordering=ordering,
                lists=lists,
            )

    graph: Callable[..., Any] = submitted
    return graph


submitted = submitted_graph(wide=False)
submitted_wide = submitted_graph(wide=True)
