"""A training that was submitted to a cluster, recorded with all others: the training graph behind its claim."""

from collections.abc import Callable
from typing import Any

from kfp import dsl

from components.claim_training import claim_training
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
    ) -> None:
        """Note that the training begins, and run the training graph; end at once where another one is running.

        Args:
            name: As for the training graph; so are all that follow.
            data: Likewise.
            features: Likewise.
            models: Likewise.
            gates: Likewise.
            slices: Likewise.
            skew_rows: Likewise.
            monitoring: Likewise.
            serving: Likewise.
            runtime: Likewise.
            cluster: Likewise.
            location: Likewise.
            input_digest: Likewise.
            stores: Likewise.
            code: Likewise.
            now: Likewise.
            trigger: Likewise; what a decision started was claimed before.
            reasons: Likewise.
            key: Of the decision, or of a person's submission.
            until: Likewise.
            previous: Likewise.
        """
        claimed = claim_training(name=name, trigger=trigger, key=key, until=until, stores=stores, code=code)
        claimed.set_display_name("claim_training").set_caching_options(False)
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
            )

    graph: Callable[..., Any] = submitted
    return graph


submitted = submitted_graph(wide=False)
submitted_wide = submitted_graph(wide=True)
