"""From live traffic, or from the clock, to rows and a decision, and to a new training when that is decided."""

from collections.abc import Callable
from typing import Any

from kfp import dsl

from components.check_live_traffic import check_live_traffic
from components.claim_moment import claim_moment
from components.collect import collect
from pipelines.parameters import names_of, taking
from pipelines.steps import add_step
from pipelines.training import training, training_wide


def _parameters(train: Any, *, by_clock: bool) -> list[str]:
    """Return those of the training graph but what the decision says; and the schedule's expression, if that decides."""
    shared = [name for name in names_of(train.pipeline_func) if name != "cause"]
    return [*shared, "cron"] if by_clock else shared


def monitoring_graph(*, wide: bool, by_clock: bool = False) -> Callable[..., Any]:
    """Return the watching graph, or that of the schedule's trainings.

    Args:
        wide: Whether its training is the wide one.
        by_clock: Whether a moment of the schedule decides, and not a look at live traffic. Either way the decision is
            one of the monitoring store's, so that at most one training is running.
    """
    train = training_wide if wide else training
    base = "shortlist-scheduled-retraining" if by_clock else "shortlist-monitoring"

    @dsl.pipeline(
        name=f"{base}-wide" if wide else base,
        description=f"From {'the clock' if by_clock else 'live traffic'} to a decision, and to a new training",
    )
    @taking(*_parameters(train, by_clock=by_clock))
    def monitoring(**given: Any) -> None:
        """Collect what is due, and decide once; where that is to train, run the training graph with its reasons."""
        cron = {"cron": given.pop("cron")} if by_clock else {}

        def sections(*names: str) -> dict[str, Any]:
            return {name: given[name] for name in ("name", "stores", "code", *names)}

        collected = add_step(collect, cached=False, **sections("data", "serving", "runtime"))
        if by_clock:
            seen = add_step(claim_moment, cached=False, **sections("monitoring"), **cron)
        else:
            seen = add_step(check_live_traffic, cached=False, **sections("monitoring", "gates", "serving"))
        seen.after(collected)
        with dsl.If(seen.outputs["Output"] == True, name="retrain"):  # noqa: E712 - Kubeflow builds the condition from it
            train(**given, cause=seen.outputs["cause"])

    graph: Callable[..., Any] = monitoring
    return graph


monitoring = monitoring_graph(wide=False)
monitoring_wide = monitoring_graph(wide=True)
scheduled_retraining = monitoring_graph(wide=False, by_clock=True)
scheduled_retraining_wide = monitoring_graph(wide=True, by_clock=True)
