"""Steps from the user's files to a valid log."""

from typing import Any, NamedTuple

from components.ingest import ingest
from components.validate import validate
from pipelines.steps import add_step


class LogArtefacts(NamedTuple):
    """Artefacts that later steps read."""

    raw_log: Any
    """The typed rows."""
    valid_log: Any
    """The rows that passed all rules."""
    quarantine: Any
    """The rows that failed a rule."""


def add_log_steps(common: dict[str, Any], files: Any, collected: Any, moments: dict[str, Any]) -> LogArtefacts:
    """Add the step that reads every file, and the one that validates every day.

    Args:
        common: Parameters that define the log: `data`, `runtime` and `code`.
        files: Location of its files: the graph's parameter `log`.
        collected: The rows collected from live traffic.
        moments: `now` and `until`.
    """
    log = add_step(ingest, **common, log=files, collected=collected)
    valid = add_step(validate, **common, **moments, raw_log=log.outputs["raw_log"])
    return LogArtefacts(log.outputs["raw_log"], valid.outputs["valid_log"], valid.outputs["quarantine"])
