"""The monitoring and scheduled-retraining graphs: collect rows, decide, and train where that is decided."""

from typing import Any

from kfp import dsl

from components.live import check_live_traffic, claim_moment, collect
from pipelines.graph import PipelineBuilder
from pipelines.training import build_training, training_parameters


def build_monitoring(graph: PipelineBuilder, name: str = "shortlist-monitoring") -> Any:
    """Return the monitoring graph: a check of live traffic decides.

    Args:
        graph: Builder of the spec's graphs.
        name: Name of the pipeline.
    """
    return _build(graph, name, by_clock=False)


def build_scheduled_retraining(graph: PipelineBuilder, name: str = "shortlist-scheduled-retraining") -> Any:
    """Return the graph of scheduled trainings: the schedule decides.

    Args:
        graph: Builder of the spec's graphs.
        name: Name of the pipeline.
    """
    return _build(graph, name, by_clock=True)


def _build(graph: PipelineBuilder, name: str, *, by_clock: bool) -> Any:
    """Return a graph that decides and trains. The decision is recorded, so that at most one training is running."""
    training = build_training(graph)
    shared = [parameter for parameter in training_parameters(graph.spec) if parameter not in ("cause", "with_rollout")]
    description = f"From {'the clock' if by_clock else 'live traffic'} to a decision, and to a new training"

    @graph.pipeline(name, description, [*shared, "cron"] if by_clock else shared)
    def monitoring() -> None:
        """Collect rows that are due, and decide once; if the decision is to train, run the training graph."""
        collected = graph.add(collect, cached=False)
        decision = (
            graph.add(claim_moment, cached=False, after=[collected])
            if by_clock
            else graph.add(
                check_live_traffic, cached=False, after=[collected], ordering=graph.parameters.get("ordering")
            )
        )
        with dsl.If(decision["Output"].channel == True, name="retrain"):  # noqa: E712 - Kubeflow builds the condition from it
            sections = {parameter: graph.parameter(parameter) for parameter in shared}
            training(**sections, cause=decision["cause"].channel)

    return monitoring
