"""Kubeflow wrapper of shortlist.features.publish: Feast's values compared with the feature table."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def materialize_features(
    name: str,
    runtime: str,
    skew_rows: int,
    stores: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    table: dsl.Input[dsl.Dataset],
    skew: dsl.Output[dsl.Dataset],
) -> None:
    """Register the views in Feast, materialise them, and compare Feast's values with the rows that models train on."""
    from pathlib import Path

    from shortlist.features.feast_store_location import spec_feast_store_location
    from shortlist.features.publish import publish
    from shortlist.spec.engine import load_runtime
    from shortlist.storage.storage_config import StorageConfig
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    with step("materialize_features") as running_step:
        store = spec_feast_store_location(StorageConfig.parse(stores), name)
        inputs = Path(valid_log.path), Path(fitted.path), Path(table.path)
        publish(name, store, load_runtime(runtime), skew_rows, *inputs, Path(skew.path))
    write_metadata(skew, step=running_step.record)
