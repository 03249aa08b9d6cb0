"""Stage: from the user's files to a valid log."""

from typing import NamedTuple

from components.log import ingest, validate
from pipelines.graph import PipelineBuilder
from pipelines.graph_step import StepOutput


class LogArtefacts(NamedTuple):
    """Artefacts that later steps read."""

    raw_log: StepOutput
    """The typed rows."""
    valid_log: StepOutput
    """The rows that passed all rules."""
    quarantine: StepOutput
    """The rows that failed a rule."""


def add_log_steps(
    graph: PipelineBuilder, collected: StepOutput, now: StepOutput, until: StepOutput | str = ""
) -> LogArtefacts:
    """Add the step that reads every file, and the one that validates every day.

    Args:
        graph: The graph.
        collected: The rows collected from live traffic.
        now: Reference of freshness rules.
        until: Time at and after which no row is read.
    """
    with graph.stage("log"):
        read = graph.add(ingest, collected=collected)
        valid = graph.add(validate, now=now, until=until, raw_log=read["raw_log"])
    return LogArtefacts(read["raw_log"], valid["valid_log"], valid["quarantine"])
