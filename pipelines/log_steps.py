"""Steps from the user's files to a valid log: each in one pod, or over groups of files and of days."""

from typing import Any, NamedTuple

from kfp import dsl

from components.ingest import ingest
from components.ingest_files import ingest_files
from components.join_raw_log import join_raw_log
from components.join_valid_log import join_valid_log
from components.partition_files import partition_files
from components.validate import validate
from components.validate_days import validate_days
from pipelines.steps import add_step


class LogArtefacts(NamedTuple):
    """Artefacts that later steps read."""

    raw_log: Any
    """The typed rows."""
    valid_log: Any
    """The rows that passed all rules."""
    quarantine: Any
    """The rows that failed a rule."""


def log_in_one_pod(common: dict[str, Any], files: Any, collected: Any, moments: dict[str, Any]) -> LogArtefacts:
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


def log_over_groups(
    common: dict[str, Any], files: Any, collected: Any, moments: dict[str, Any], predecessor: Any, cluster: Any
) -> LogArtefacts:
    """Add the steps that read some files each, those that validate some days each, and those that join the results.

    Args:
        common: See `log_in_one_pod`.
        files: Likewise.
        collected: Likewise.
        moments: Likewise.
        predecessor: Task that must have ended before.
        cluster: Says how many groups there may be.
    """
    grouped = add_step(partition_files, **common, log=files, cluster=cluster).after(predecessor)
    with dsl.ParallelFor(items=grouped.outputs["Output"], name="read") as group:
        read = add_step(ingest_files, **common, log=files, group=group)
    log = add_step(
        join_raw_log,
        **common,
        collected=collected,
        until=moments["until"],
        partitions=grouped.outputs["partitions"],
        parts=dsl.Collected(read.outputs["part"]),
    )
    raw_log = log.outputs["raw_log"]
    with dsl.ParallelFor(items=log.outputs["Output"], name="validate") as group:
        judged = add_step(validate_days, **common, group=group, raw_log=raw_log)
    valid = add_step(join_valid_log, **common, **moments, raw_log=raw_log, parts=dsl.Collected(judged.outputs["part"]))
    return LogArtefacts(raw_log, valid.outputs["valid_log"], valid.outputs["quarantine"])
