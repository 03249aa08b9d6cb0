"""Kubeflow wrapper of shortlist.features.feature_changes: the changes of a backfill, before it is published."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def compare_features(
    name: str,
    stores: str,
    previous: str,
    first_day: str,
    last_day: str,
    code: str,
    fitted: dsl.Input[dsl.Dataset],
    changes: dsl.Output[dsl.Dataset],
    page: dsl.Output[dsl.Markdown],
) -> int:
    """Write the rows and features that change, and the models that read them; return how many columns change."""
    from pathlib import Path

    from shortlist.features.backfill import parse_range
    from shortlist.features.feast_store_location import spec_feast_store_location
    from shortlist.features.feature_changes import compare_fits, served_until
    from shortlist.storage.artefacts import write_json, write_text
    from shortlist.storage.objects import local_copy
    from shortlist.storage.storage_config import StorageConfig
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import note, step
    from shortlist.training.served_features import with_readers

    with step("compare_features", changes=changes.path) as running_step:
        place = spec_feast_store_location(StorageConfig.parse(stores), name)
        corrected = parse_range(first_day, last_day)
        feature_changes = compare_fits(local_copy(previous), Path(fitted.path), corrected, served_until(place))
        feature_changes = with_readers(feature_changes, RunContext(name=name, stores=stores))
        write_json(Path(changes.path), feature_changes.model_dump(mode="json"))
        write_text(Path(page.path), "```\n" + "\n".join(feature_changes.lines()) + "\n```\n")
        note("\n".join(feature_changes.lines()))
    write_metadata(changes, step=running_step.record)
    return len(feature_changes.changed)
