"""Kubeflow wrapper of shortlist.features.table.join_tables."""

from typing import List  # noqa: UP035 - Kubeflow reads this spelling alone

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def join_table(
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    parts: dsl.Input[List[dsl.Dataset]],  # noqa: UP006
    table: dsl.Output[dsl.Dataset],
) -> int:
    """Make one feature table of the groups' tables; return the number of rows."""
    from pathlib import Path

    from shortlist.features.table import join_tables
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    with step("join_table") as this:
        joined = join_tables([Path(part.path) for part in parts], Path(valid_log.path), Path(table.path))
        this.rows = joined.rows
    write_metadata(table, step=this.record, rows=joined.rows, features=len(joined.notes["columns"]))
    return joined.rows
