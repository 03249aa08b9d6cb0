"""Kubeflow wrapper of shortlist.data.validate."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
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
