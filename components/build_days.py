"""Kubeflow wrapper of shortlist.features.table.build_table, for a group of days."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def build_days(
    data: str,
    features: str,
    runtime: str,
    group: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    part: dsl.Output[dsl.Dataset],
) -> None:
    """Turn every valid row of some days into the features its day could know."""
    import json
    from pathlib import Path

    from shortlist.features.table import build_table
    from shortlist.spec.declared import DeclaredSections
    from shortlist.spec.engine import load_runtime
    from shortlist.storage.groups import read
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    with step("build_days") as this:
        own = json.loads(group)
        paths = Path(valid_log.path), Path(fitted.path), Path(part.path)
        declared, options = DeclaredSections.parse(data, features, own["slices"]), load_runtime(runtime)
        this.rows = build_table(*declared, options, *paths, only_days=read(own["days"])).rows
    write_metadata(part, step=this.record)
