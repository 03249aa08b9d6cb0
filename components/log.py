"""Steps that read the log and validate it."""

from typing import NamedTuple

from kfp import dsl


def find_collected(name: str, data: str, stores: str, code: str) -> NamedTuple(  # type: ignore[valid-type]
    "Collected", [("collected", str), ("now", str)]
):
    """Return the batches collected until now, empty where the spec collects nothing, and the current time.

    The time is the reference of freshness rules, empty where no rule needs it.
    """
    from datetime import UTC, datetime

    from shortlist.data.collected import CollectedRows
    from shortlist.data.until import freshness_moment
    from shortlist.spec.data import Data
    from shortlist.tracking.steps import step

    with step("find_collected"):
        rows = Data.model_validate_json(data)
        return (CollectedRows.describe_newest(rows, stores, name), freshness_moment(rows, datetime.now(UTC)))


def ingest(
    data: str,
    runtime: str,
    log: dict,
    collected: str,
    code: str,
    raw_log: dsl.Output[dsl.Dataset],
) -> int:
    """Read (or generate) the log and the collected rows into typed, day-partitioned Parquet; return the rows."""
    from pathlib import Path

    from shortlist.data.collected import CollectedRows
    from shortlist.data.ingest import ingest
    from shortlist.data.reading.remote_input import fetch_input
    from shortlist.spec.data import Data
    from shortlist.spec.runtime import Runtime
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    with step("ingest") as running_step, fetch_input(log["location"]) as files:
        declared = Data.model_validate_json(data)
        settings = Runtime.model_validate_json(runtime)
        table = ingest(declared, files, Path(raw_log.path), settings, collected=CollectedRows.parse(collected))
        running_step.rows = table.rows
    ends = [str(part.day) for part in (*table.days[:1], *table.days[-1:])]
    write_metadata(raw_log, step=running_step.record, rows=table.rows, days="..".join(ends))
    return table.rows


def validate(
    data: str,
    runtime: str,
    now: str,
    until: str,
    code: str,
    raw_log: dsl.Input[dsl.Dataset],
    valid_log: dsl.Output[dsl.Dataset],
    quarantine: dsl.Output[dsl.Dataset],
) -> int:
    """Split the raw log into valid and quarantined rows, or fail; return the number of valid rows."""
    from datetime import UTC, datetime
    from pathlib import Path

    from shortlist.data.until import parse_until
    from shortlist.data.validate import validate
    from shortlist.spec.data import Data
    from shortlist.spec.runtime import Runtime
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    with step("validate", quarantine=quarantine.path) as running_step:
        table = validate(
            Data.model_validate_json(data),
            Path(raw_log.path),
            Path(valid_log.path),
            Path(quarantine.path),
            Runtime.model_validate_json(runtime),
            datetime.fromisoformat(now) if now else datetime.now(UTC),
            parse_until(until),
        )
        running_step.rows = table.rows
    counts = {name: table.notes.get(name) for name in ("raw_rows", "quarantined_rows")}
    write_metadata(valid_log, step=running_step.record, rows=table.rows, **counts)
    return table.rows
