"""Kubeflow wrapper of shortlist.data.validate.join_valid_log."""

from typing import List  # noqa: UP035 - Kubeflow reads this spelling alone

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def join_valid_log(
    data: str,
    runtime: str,
    now: str,
    until: str,
    code: str,
    raw_log: dsl.Input[dsl.Dataset],
    parts: dsl.Input[List[dsl.Dataset]],  # noqa: UP006
    valid_log: dsl.Output[dsl.Dataset],
    quarantine: dsl.Output[dsl.Dataset],
) -> int:
    """Make one valid log and one quarantine of what was judged in groups of days, or stop; return the valid rows."""
    from datetime import UTC, datetime
    from pathlib import Path

    from shortlist.data.until import parse_until
    from shortlist.data.validate import join_valid_log
    from shortlist.spec.data import Data
    from shortlist.spec.runtime import Runtime
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    with step("join_valid_log", quarantine=quarantine.path) as this:
        table = join_valid_log(
            Data.model_validate_json(data),
            Path(raw_log.path),
            [Path(part.path) for part in parts],
            Path(valid_log.path),
            Path(quarantine.path),
            Runtime.model_validate_json(runtime),
            datetime.fromisoformat(now) if now else datetime.now(UTC),
            parse_until(until),
        )
        this.rows = table.rows
    counts = {name: table.notes.get(name) for name in ("raw_rows", "quarantined_rows")}
    write_metadata(valid_log, step=this.record, rows=table.rows, **counts)
    return table.rows
