"""The backfill graph: recounts corrected days of the log for the features of the champion."""

from typing import Any

from kfp import dsl

from components.features import compare_features, find_served_features, publish_features, recount_days
from pipelines.graph import PipelineBuilder
from pipelines.log_steps import add_log_steps

_PARAMETERS = (
    *("name", "data", "features", "slices", "skew_rows", "runtime", "log", "stores", "code"),
    *("first_day", "last_day", "publish"),
)


def build_backfill(graph: PipelineBuilder, name: str = "shortlist-backfill") -> Any:
    """Return the backfill graph.

    Args:
        graph: Builder of the spec's graphs.
        name: Name of the pipeline.
    """

    @graph.pipeline(name, "Corrected days of the log, counted again", _PARAMETERS)
    def backfill() -> None:
        """Recount the days of a range whose rows changed, report the changes, and publish them if asked to."""
        served = graph.add(find_served_features, cached=False)
        with graph.stage("data"):
            log = add_log_steps(graph, served["collected"], served["now"])
            previous = served["previous"]
            declared: dict[str, Any] = {"data": served["data"], "features": served["features"]}
            fitted = graph.add(recount_days, **declared, previous=previous, valid_log=log.valid_log)["fitted"]
        # Its parameters do not contain what servers read, nor which models there are.
        compared = graph.add(compare_features, cached=False, previous=previous, fitted=fitted)
        with dsl.If(graph.parameter("publish") == True, name="publish"):  # noqa: E712 - Kubeflow builds the condition from it
            graph.add(
                publish_features,
                cached=False,
                version=served["version"],
                valid_log=log.valid_log,
                fitted=fitted,
                replaces=previous,
                after=[compared],
            )

    return backfill
