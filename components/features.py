"""Steps that count statistics, build the feature table, and publish features to Feast."""

from typing import NamedTuple

from kfp import dsl


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
    from shortlist.features.fits.fit import fit_incrementally
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


def build_table(
    data: str,
    features: str,
    slices: list,
    runtime: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    table: dsl.Output[dsl.Dataset],
) -> int:
    """Compute the features of every valid row from what was known on its day; return the number of rows."""
    from pathlib import Path

    from shortlist.features.rows.table import build_table
    from shortlist.spec.declared import DeclaredSections
    from shortlist.spec.engine import load_runtime
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    with step("build_table") as running_step:
        paths = Path(valid_log.path), Path(fitted.path), Path(table.path)
        built = build_table(*DeclaredSections.parse(data, features, slices), load_runtime(runtime), *paths)
        running_step.rows = built.rows
    write_metadata(table, step=running_step.record, rows=built.rows, features=len(built.notes["columns"]))
    return built.rows


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

    from shortlist.features.feast.feast_store_location import spec_feast_store_location
    from shortlist.features.fits.publish import publish
    from shortlist.spec.engine import load_runtime
    from shortlist.storage.storage_config import StorageConfig
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    with step("materialize_features") as running_step:
        store = spec_feast_store_location(StorageConfig.parse(stores), name)
        inputs = Path(valid_log.path), Path(fitted.path), Path(table.path)
        publish(name, store, load_runtime(runtime), skew_rows, *inputs, Path(skew.path))
    write_metadata(skew, step=running_step.record)


def find_served_features(name: str, data: str, features: str, stores: str, code: str) -> NamedTuple(  # type: ignore[valid-type]
    "Served",
    [
        ("data", str),
        ("features", str),
        ("previous", str),
        ("version", str),
        ("collected", str),
        ("now", str),
        ("step", str),
    ],
):
    """Return the champion's features, the fit that servers read now, its version, and the rows collected until now.

    Also the time that is the reference of freshness rules, empty where no rule needs it.
    """
    from datetime import UTC, datetime

    from shortlist.data.collected import CollectedRows
    from shortlist.data.until import freshness_moment
    from shortlist.spec.data import Data
    from shortlist.spec.features import Features
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import step
    from shortlist.training.served_features import find_served_features

    with step("find_served_features") as running_step:
        context = RunContext(name=name, stores=stores)
        declared = Data.model_validate_json(data)
        served = find_served_features(context, declared, Features.model_validate_json(features))
        collected = CollectedRows.describe_newest(declared, stores, name)
        now = freshness_moment(declared, datetime.now(UTC))
    return (*served, collected, now, running_step.json)


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

    from shortlist.features.feast.feast_store_location import spec_feast_store_location
    from shortlist.features.fits.publish import publish
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

    from shortlist.features.fits.backfill import parse_range, recount
    from shortlist.spec.declared import DeclaredSections
    from shortlist.spec.engine import load_runtime
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    with step("recount_days") as this:
        declared, corrected = DeclaredSections.parse(data, features, slices), parse_range(first_day, last_day)
        recount(declared, load_runtime(runtime), Path(valid_log.path), Path(fitted.path), previous, corrected)
    write_metadata(fitted, step=this.record)


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

    from shortlist.features.feast.feast_store_location import spec_feast_store_location
    from shortlist.features.fits.backfill import parse_range
    from shortlist.features.fits.feature_changes import compare_fits, served_until
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
