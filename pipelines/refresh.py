"""The refresh graph: newer statistics of the champion's features, and newer candidates, without a training."""

from typing import Any

from components.features import find_served_features, fit_features, publish_features
from components.live import collect
from components.release import refresh_releases
from pipelines.graph import PipelineBuilder
from pipelines.log_steps import add_log_steps

_PARAMETERS = ("name", "data", "features", "slices", "serving", "skew_rows", "runtime", "log", "stores", "code")


def build_refresh(graph: PipelineBuilder, name: str = "shortlist-refresh") -> Any:
    """Return the refresh graph.

    Args:
        graph: Builder of the spec's graphs.
        name: Name of the pipeline.
    """

    @graph.pipeline(name, "Newer statistics and candidates for the champion", _PARAMETERS)
    def refresh() -> None:
        """Collect rows of live traffic that are due, count new days of the log, and publish the statistics.

        They go to Feast's online store and to the snapshot of every server. Then the sources of candidates are updated
        to the same log, so that a new item is scored with its own features.
        """
        collected = graph.add(collect, cached=False)
        # Its parameters do not contain which rows were collected, nor what servers read.
        served = graph.add(find_served_features, cached=False, after=[collected])
        with graph.stage("data"):
            log = add_log_steps(graph, served["collected"], served["now"])
            declared: dict[str, Any] = {
                "data": served["data"],
                "features": served["features"],
                "previous": served["previous"],
            }
            fitted = graph.add(fit_features, **declared, valid_log=log.valid_log)["fitted"]
        published = graph.add(
            publish_features, cached=False, version=served["version"], valid_log=log.valid_log, fitted=fitted
        )
        if graph.spec.retrieval:  # the step's parameters do not contain which releases there are
            graph.add(refresh_releases, cached=False, data=served["data"], valid_log=log.valid_log, after=[published])

    return refresh
