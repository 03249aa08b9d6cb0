"""Kubeflow wrapper of shortlist.features.publish: newer statistics for what serves, without a training."""

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
    """Bring Feast and the servers up to the newest complete tile, or stop; return up to when impressions count.

    Where a fit is named that this one replaces, nothing is published unless that one is served.
    """
    from datetime import UTC, datetime
    from pathlib import Path

    from shortlist.features.feast_store_location import spec_feast_store_location
    from shortlist.features.publish import publish
    from shortlist.spec.engine import load_runtime
    from shortlist.storage.storage_config import StorageConfig
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import note, step

    with step("publish_features") as this:
        store = spec_feast_store_location(StorageConfig.parse(stores), name)
        inputs = Path(valid_log.path), Path(fitted.path), None
        options, out = load_runtime(runtime), Path(skew.path)
        publish(name, store, options, skew_rows, *inputs, out, now=datetime.now(UTC), replaces=replaces)
        counted = str(store.require_announcement()["counted_until"])
        note(f"Version {version} reads statistics of everything before {counted}.")
    write_metadata(skew, step=this.record)
    return counted
