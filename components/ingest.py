"""Kubeflow wrapper of shortlist.data.ingest."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
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
