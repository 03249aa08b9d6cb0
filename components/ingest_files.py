"""Kubeflow wrapper of shortlist.data.ingest.ingest_files."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def ingest_files(
    data: str,
    runtime: str,
    log: dict,
    group: str,
    code: str,
    part: dsl.Output[dsl.Dataset],
) -> None:
    """Read (or generate) some files of the log into typed, day-partitioned Parquet."""
    from functools import partial
    from pathlib import Path

    from shortlist.data.file_groups import FileGroup
    from shortlist.data.ingest import ingest_files
    from shortlist.data.reading.remote_input import fetch_input
    from shortlist.spec.data import Data
    from shortlist.spec.runtime import Runtime
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    declared, own = Data.model_validate_json(data), FileGroup.read(group)
    with step("ingest_files") as this, fetch_input(log["location"], partial(own.needed, declared)) as files:
        settings = Runtime.model_validate_json(runtime)
        this.rows = ingest_files(declared, files, own, Path(part.path), settings).rows
    write_metadata(part, step=this.record)
