"""The graph of a submitted training: the training graph, run only where no other training is running."""

from typing import Any

from kfp import dsl

from components.training import claim_training
from pipelines.graph import PipelineBuilder
from pipelines.training import build_training, training_parameters


def build_submitted(graph: PipelineBuilder, name: str = "shortlist-submitted-training") -> Any:
    """Return the graph of a submitted training.

    Args:
        graph: Builder of the spec's graphs.
        name: Name of the pipeline.
    """
    training = build_training(graph)
    description = "From a raw log to a blessed model in front of users, unless another training is running"

    @graph.pipeline(name, description, training_parameters(graph.spec))
    def submitted() -> None:
        """Record the start of the training and run the training graph; end where another training is running."""
        claimed = graph.add(claim_training, cached=False)
        with dsl.If(claimed["Output"].channel == True, name="train"):  # noqa: E712 - Kubeflow builds the condition from it
            training(**graph.parameters | {"cause": claimed["cause"].channel})

    return submitted
