"""Kubeflow wrapper of shortlist.features.fit."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def fit_features(
    data: str,
    features: str,
    slices: list,
    runtime: str,
    previous: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Output[dsl.Dataset],
) -> None:
    """Count the statistics of every day that `previous` has not; write vocabularies and the tables of Feast's views."""
    from pathlib import Path

    from shortlist.contracts import Files
    from shortlist.features.fit import fit_incrementally
    from shortlist.spec.declared import DeclaredSections
    from shortlist.spec.engine import load_runtime
    from shortlist.storage.tables import DayTable
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    with step("fit_features") as running_step:
        log = Path(valid_log.path)
        declared, options = DeclaredSections.parse(data, features, slices), load_runtime(runtime)
        fit_incrementally(previous, *declared, options, log, Path(fitted.path))
        running_step.rows = DayTable.open(log, Files.LOG).rows
    write_metadata(fitted, step=running_step.record)
