"""Kubeflow wrapper of shortlist.features.table.build_table, for a group of days."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def build_days(
    data: str,
    features: str,
    slices: list,
    runtime: str,
    days: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    part: dsl.Output[dsl.Dataset],
) -> None:
    """Turn every valid row of some days into the features its day could know."""
    from pathlib import Path

    from shortlist.features.table import build_table
    from shortlist.spec.declared import DeclaredSections
    from shortlist.spec.engine import prepared
    from shortlist.storage.groups import read
    from shortlist.tracking.steps import step

    with step("build_days") as this:
        paths = Path(valid_log.path), Path(fitted.path), Path(part.path)
        declared, options = DeclaredSections.parse(data, features, slices), prepared(runtime)
        this.rows = build_table(*declared, options, *paths, only=read(days)).rows
    part.metadata["step"] = this.record
