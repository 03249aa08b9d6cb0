"""Kubeflow wrapper of shortlist.deployment.refreshed_releases: newer candidates for the serving model, no training."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def refresh_releases(
    name: str,
    data: str,
    runtime: str,
    log: dict,
    stores: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    releases: dsl.Output[dsl.Dataset],
) -> int:
    """Update the released sources, lists and users' columns; return the number of items that can be recommended."""
    from pathlib import Path

    from shortlist.deployment.refreshed_releases import refresh_releases
    from shortlist.spec.data import Data
    from shortlist.spec.engine import load_runtime
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import step

    with step("refresh_releases") as running_step:
        context, inputs = RunContext(name=name, stores=stores), (Data.model_validate_json(data), Path(valid_log.path))
        out, seed = Path(releases.path), load_runtime(runtime).seed
        running_step.rows = refresh_releases(context, *inputs, log["location"], out, seed)
    write_metadata(releases, step=running_step.record)
    return running_step.rows
