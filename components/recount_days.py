"""Kubeflow wrapper of shortlist.features.backfill: corrected days are recounted."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def recount_days(
    data: str,
    features: str,
    slices: list,
    runtime: str,
    previous: str,
    first_day: str,
    last_day: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Output[dsl.Dataset],
) -> None:
    """Recount the corrected days of a range in the fit that servers read; fail where other days have changed, too."""
    from pathlib import Path

    from shortlist.features.backfill import parse_range, recount
    from shortlist.spec.declared import DeclaredSections
    from shortlist.spec.engine import load_runtime
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    with step("recount_days") as this:
        declared, corrected = DeclaredSections.parse(data, features, slices), parse_range(first_day, last_day)
        recount(declared, load_runtime(runtime), Path(valid_log.path), Path(fitted.path), previous, corrected)
    write_metadata(fitted, step=this.record)
