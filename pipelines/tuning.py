"""The tuning graph: from a raw log to a patch with better settings."""

from typing import Any

from kfp import dsl

from components.features import build_table, fit_features
from components.log import find_collected
from components.tuning import choose_settings, plan_trials, run_trials
from pipelines.graph import PipelineBuilder
from pipelines.log_steps import add_log_steps

_PARAMETERS = ("name", "data", "features", "models", "tune", "slices", "runtime", "log", "stores", "code")


def build_tuning(graph: PipelineBuilder, name: str = "shortlist-tuning") -> Any:
    """Return the tuning graph.

    Args:
        graph: Builder of the spec's graphs.
        name: Name of the pipeline.
    """

    @graph.pipeline(name, "From a raw log to a patch with better settings", _PARAMETERS)
    def tuning() -> None:
        """Build the feature table as a training does, run the trials in parallel, and choose the best settings.

        Steps of an earlier training are found in the cache. Nothing is trained for serving, registered or applied.
        """
        # As in a training: all trials of this run read the same batches, whatever is collected meanwhile.
        collected = graph.add(find_collected, cached=False)
        log = add_log_steps(graph, collected["collected"], collected["now"])
        fitted = graph.add(fit_features, previous="", valid_log=log.valid_log)["fitted"]
        table = graph.add(build_table, valid_log=log.valid_log, fitted=fitted)["table"]
        # Trials depend on the speed of the machine: a repeated step plans others.
        planned = graph.add(plan_trials, cached=False, table=table)
        with dsl.ParallelFor(items=planned["Output"].channel, name="batches") as batch:
            trials = graph.add(run_trials, cached=False, batch=batch, table=table)
        graph.add(choose_settings, cached=False, studies=trials["study"].collected)

    return tuning
