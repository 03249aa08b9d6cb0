"""Kubeflow wrapper of shortlist.features.publish: Feast's answers against the feature table."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def store_features(
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
    """Register the views in Feast, materialise them, and compare its answers with the rows that models train on."""
    from pathlib import Path

    from shortlist.config.engine import prepared
    from shortlist.features.place import place_in
    from shortlist.features.publish import publish
    from shortlist.stores import Stores
    from shortlist.tracking.steps import step

    with step("store_features") as this:
        store = place_in(Stores.parse(stores), name)
        inputs = Path(valid_log.path), Path(fitted.path), Path(table.path)
        publish(name, store, prepared(runtime), skew_rows, *inputs, Path(skew.path))
    skew.metadata["step"] = this.record
