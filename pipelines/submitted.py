"""The graph of a submitted training: the training graph, run only where no other training is running."""

from typing import Any

from kfp import dsl

from components.claim_training import claim_training
from pipelines.parameters import parameter_names, with_parameters
from pipelines.steps import add_step
from pipelines.training import training

_TRAIN: Any = training


@dsl.pipeline(
    name="shortlist-submitted-training",
    description="From a raw log to a blessed model in front of users, unless another training is running",
)
@with_parameters(*parameter_names(_TRAIN.pipeline_func))
def submitted(**arguments: Any) -> None:
    """Record the start of the training and run the training graph; end where another training is running."""
    claim_inputs = {name: arguments[name] for name in ("name", "stores", "code", "cause")}
    claimed = add_step(claim_training, cached=False, **claim_inputs)
    with dsl.If(claimed.outputs["Output"] == True, name="train"):  # noqa: E712 - Kubeflow builds the condition from it
        _TRAIN(**{**arguments, "cause": claimed.outputs["cause"]})
