"""Kubeflow wrapper of shortlist.features.table."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def build_table(
    data: str,
    features: str,
    slices: list,
    runtime: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    table: dsl.Output[dsl.Dataset],
) -> int:
    """Compute the features of every valid row from what was known on its day; return the number of rows."""
    from pathlib import Path

    from shortlist.features.table import build_table
    from shortlist.spec.declared import DeclaredSections
    from shortlist.spec.engine import load_runtime
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    with step("build_table") as running_step:
        paths = Path(valid_log.path), Path(fitted.path), Path(table.path)
        built = build_table(*DeclaredSections.parse(data, features, slices), load_runtime(runtime), *paths)
        running_step.rows = built.rows
    write_metadata(table, step=running_step.record, rows=built.rows, features=len(built.notes["columns"]))
    return built.rows
