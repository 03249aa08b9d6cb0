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
    """Count the statistics of every day that `previous` has not; write vocabularies and the Feast views they give."""
    from pathlib import Path

    from shortlist.config.declared import Declared
    from shortlist.config.engine import prepared
    from shortlist.contracts import Files
    from shortlist.features.fit import fit_onto
    from shortlist.tables import DayTable
    from shortlist.tracking.steps import step

    with step("fit_features") as this:
        log = Path(valid_log.path)
        declared, options = Declared.parse(data, features, slices), prepared(runtime)
        fit_onto(previous, *declared, options, log, Path(fitted.path))
        this.rows = DayTable.open(log, Files.LOG).rows
    fitted.metadata["step"] = this.record
