"""Kubeflow wrapper of shortlist.features.publish: newer statistics for the serving model, without a training."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def publish_features(
    name: str,
    runtime: str,
    skew_rows: int,
    stores: str,
    version: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    skew: dsl.Output[dsl.Dataset],
    replaces: str = "",
) -> str:
    """Update Feast and the servers to the newest complete tile, or fail; return the time until which rows are counted.

    Where `replaces` names a fit, nothing is published unless that fit is served.
    """
    from datetime import UTC, datetime
    from pathlib import Path

    from shortlist.features.feast_store_location import spec_feast_store_location
    from shortlist.features.publish import publish
    from shortlist.spec.engine import load_runtime
    from shortlist.storage.storage_config import StorageConfig
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import note, step

    with step("publish_features") as running_step:
        store = spec_feast_store_location(StorageConfig.parse(stores), name)
        inputs = Path(valid_log.path), Path(fitted.path), None
        options, out = load_runtime(runtime), Path(skew.path)
        publish(name, store, options, skew_rows, *inputs, out, now=datetime.now(UTC), replaces=replaces)
        counted = str(store.require_announcement()["counted_until"])
        note(f"Version {version} reads statistics of everything before {counted}.")
    write_metadata(skew, step=running_step.record)
    return counted
