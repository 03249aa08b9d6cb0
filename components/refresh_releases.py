"""Kubeflow wrapper of shortlist.deployment.refreshed_releases: newer candidates for what serves, without a training."""

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
    """Bring the released sources, lists and users' columns up to date; return the items that can be recommended."""
    from pathlib import Path

    from shortlist.deployment.refreshed_releases import refresh_releases
    from shortlist.spec.data import Data
    from shortlist.spec.engine import prepared
    from shortlist.tracking.steps import step
    from shortlist.training.training import RunContext

    with step("refresh_releases") as this:
        context, inputs = RunContext(name=name, stores=stores), (Data.model_validate_json(data), Path(valid_log.path))
        out, seed = Path(releases.path), prepared(runtime).seed
        this.rows = refresh_releases(context, *inputs, log["location"], out, seed)
    releases.metadata["step"] = this.record
    return this.rows
