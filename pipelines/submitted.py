"""A training that was submitted to a cluster, recorded with all others: the training graph behind its claim."""

from collections.abc import Callable
from typing import Any

from kfp import dsl

from components.claim_training import claim_training
from pipelines.parameters import names_of, taking
from pipelines.steps import add_step
from pipelines.training import training, training_wide


def submitted_graph(*, wide: bool) -> Callable[..., Any]:
    """Return the graph that a submission starts.

    Args:
        wide: Whether its training is the wide one.
    """
    train: Any = training_wide if wide else training

    @dsl.pipeline(
        name="shortlist-submitted-training-wide" if wide else "shortlist-submitted-training",
        description="From a raw log to a blessed model in front of users, unless another training is running",
    )
    @taking(*names_of(train.pipeline_func))
    def submitted(**given: Any) -> None:
        """Note that the training begins, and run the training graph; end at once where another one is running."""
        where = {name: given[name] for name in ("name", "stores", "code", "cause")}
        claimed = add_step(claim_training, cached=False, **where)
        with dsl.If(claimed.outputs["Output"] == True, name="train"):  # noqa: E712 - Kubeflow builds the condition from it
            train(**{**given, "cause": claimed.outputs["cause"]})

    graph: Callable[..., Any] = submitted
    return graph


submitted = submitted_graph(wide=False)
submitted_wide = submitted_graph(wide=True)
