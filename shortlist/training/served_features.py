"""The champion's features, for a refresh of their statistics without a training."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from shortlist.contracts import Files, ShortlistError
from shortlist.features.feast.feast_store_location import spec_feast_store_location
from shortlist.features.fits.feature_changes import AffectedModel, FeatureChanges
from shortlist.features.fits.previous_fit import newest_fit
from shortlist.ranking.record import read_record
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.load import canonical_json
from shortlist.storage.artefacts import read_json
from shortlist.storage.records.identity import claim
from shortlist.storage.storage_config import StorageConfig
from shortlist.tracking.run_context import RunContext
from shortlist.tracking.steps import note


class ServedFeatures(NamedTuple):
    """Sections and fit of a refresh."""

    data: str
    """The declared data section, with the outcome delay that the champion was trained with, as canonical JSON."""
    features: str
    """The champion's features section, as canonical JSON."""
    previous: str
    """Path or address of the fit that servers read."""
    version: str
    """Version of the champion."""


def with_readers(changes: FeatureChanges, context: RunContext) -> FeatureChanges:
    """Return changes with the registered models that read them: the champion, and a different candidate.

    Args:
        changes: Changes of a backfill.
        context: Spec and stores.

    Raises:
        ShortlistError: A store cannot be reached, or a model's files were changed.
    """
    readers: list[AffectedModel] = []
    for alias in ("champion", "candidate"):
        with TemporaryDirectory(prefix="shortlist-reader-") as files:
            model = context.tracker.registry.find(alias, Path(files))
            if model is None or any(model.version == reader.version for reader in readers):
                continue
            read_names = {column.name for column in read_record(model.folder).features}
        names = tuple(name for name in changes.features if name in read_names)
        if names:
            readers.append(AffectedModel(version=model.version, model=model.name, alias=alias, features=names))
    return changes.model_copy(update={"read_by": tuple(readers)})


def find_served_features(context: RunContext, data: Data, features: Features) -> ServedFeatures:
    """Return the champion's features; changes of the spec since then do not apply to a refresh.

    Args:
        context: Spec and stores.
        data: The data section of the spec.
        features: The features section of the spec.

    Raises:
        ShortlistError: There is no champion, or a store cannot be reached or belongs to another cluster.
    """
    stores = StorageConfig.parse(context.stores)
    claim(stores)
    with TemporaryDirectory(prefix="shortlist-champion-") as files:
        champion = context.tracker.registry.champion(Path(files))
        if champion is None:
            raise ShortlistError(
                f"spec '{context.name}' has no champion whose features could be refreshed; make run"
                f" SPEC={context.name} first"
            )
        saved = read_json(champion.folder / Files.PREPROCESSING / Files.FEATURES)
    champion_features, delay = (
        Features.model_validate(saved["features"]),
        Data.model_validate(saved["data"]).outcome_delay,
    )
    if (champion_features, delay) != (features, data.outcome_delay):
        note(f"The spec's features are not those of version {champion.version}, which serves; its own are refreshed.")
    changed: dict[str, object] = {"outcome_delay": delay}
    if data.live.collect and delay != data.outcome_delay:  # rows are collected after the declared delay in any case
        changed["live"] = data.live.model_copy(update={"outcome_delay": data.live_outcome_delay})
    return ServedFeatures(
        data=canonical_json(data.model_copy(update=changed)),
        features=canonical_json(champion_features),
        previous=newest_fit(spec_feast_store_location(stores, context.name)),
        version=str(champion.version),
    )
