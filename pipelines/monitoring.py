"""The monitoring and scheduled-retraining graphs: collect rows, decide, and train where that is decided."""

from collections.abc import Callable
from typing import Any

from kfp import dsl

from components.check_live_traffic import check_live_traffic
from components.claim_moment import claim_moment
from components.collect import collect
from pipelines.parameters import parameter_names, with_parameters
from pipelines.steps import add_step
from pipelines.training import training


def _parameters(train: Any, *, by_clock: bool) -> list[str]:
    """Return the training graph's parameters without the cause; with the cron expression for a scheduled training."""
    shared = [name for name in parameter_names(train.pipeline_func) if name != "cause"]
    return [*shared, "cron"] if by_clock else shared


def monitoring_graph(*, by_clock: bool = False) -> Callable[..., Any]:
    """Return the monitoring graph, or that of scheduled trainings.

    Args:
        by_clock: Whether the schedule decides, and not a check of live traffic. Both record the decision in the
            monitoring store, so that at most one training is running.
    """
    train: Any = training
    base = "shortlist-scheduled-retraining" if by_clock else "shortlist-monitoring"

    @dsl.pipeline(
        name=base,
        description=f"From {'the clock' if by_clock else 'live traffic'} to a decision, and to a new training",
    )
    @with_parameters(*_parameters(train, by_clock=by_clock))
    def monitoring(**arguments: Any) -> None:
        """Collect rows that are due, and decide once; if the decision is to train, run the training graph."""
        cron = {"cron": arguments.pop("cron")} if by_clock else {}

        def sections(*names: str) -> dict[str, Any]:
            return {name: arguments[name] for name in ("name", "stores", "code", *names)}

        collected = add_step(collect, cached=False, **sections("data", "serving", "runtime"))
        if by_clock:
            decision = add_step(claim_moment, cached=False, **sections("monitoring"), **cron)
        else:
            decision = add_step(check_live_traffic, cached=False, **sections("monitoring", "gates", "serving"))
        decision.after(collected)
        with dsl.If(decision.outputs["Output"] == True, name="retrain"):  # noqa: E712 - Kubeflow builds the condition from it
            train(**arguments, cause=decision.outputs["cause"])

    graph: Callable[..., Any] = monitoring
    return graph


monitoring = monitoring_graph()
scheduled_retraining = monitoring_graph(by_clock=True)
