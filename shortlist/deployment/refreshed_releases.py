"""Refresh of the releases of champion and candidate: newer retrieval candidates without a training."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from shortlist.contracts import ShortlistError
from shortlist.features.feast.feast_store_location import spec_feast_store_location
from shortlist.slates.refreshed_releases import announce_release, refresh_release
from shortlist.spec.data import Data
from shortlist.storage.storage_config import StorageConfig
from shortlist.tracking.registry import RELEASE, Alias
from shortlist.tracking.run_context import RunContext
from shortlist.tracking.steps import note


def refresh_releases(context: RunContext, data: Data, valid_log: Path, location: str, out: Path, seed: int) -> int:
    """Refresh and announce the releases of champion and candidate; return the number of items of the champion's.

    Versions without a release are skipped. A failure of the candidate's release is logged and ignored.

    Args:
        context: Spec and storage.
        data: The spec's section.
        valid_log: Folder of the validated log.
        location: Location of the user's files; empty for a generated log.
        out: Folder for the releases, one subfolder each.
        seed: Seed of all random draws.

    Raises:
        ShortlistError: The champion's release cannot be refreshed; its servers keep the present one.
    """
    registry, items, refreshed_digests = context.tracker.registry, 0, set[str]()
    out.mkdir(parents=True, exist_ok=True)
    aliases: tuple[Alias, ...] = ("champion", "candidate")
    for alias in aliases:
        version = registry.version_of(alias)
        digest = None if version is None else registry.tags_of(version).get(RELEASE)
        if version is None or digest is None or digest in refreshed_digests:
            continue
        refreshed_digests.add(digest)
        try:
            count = _refresh(context, version, data, valid_log, location, out / digest, seed)
        except ShortlistError as problem:
            if alias == "champion":
                raise
            note(f"The candidates of version {version}, which does not serve yet, are not refreshed: {problem}")
            continue
        items = count if alias == "champion" else items
    return items


def _refresh(
    context: RunContext, version: int, data: Data, valid_log: Path, location: str, folder: Path, seed: int
) -> int:  # fmt: skip
    with TemporaryDirectory(prefix="shortlist-release-") as fetched:
        blessed = context.tracker.registry.retrieval_of(version, Path(fetched))
        assert blessed is not None
        refresh_release(blessed, data, valid_log, location, folder, seed)
    place = spec_feast_store_location(StorageConfig.parse(context.stores), context.name)
    announced = announce_release(place, folder)
    note(f"Version {version} recommends from {announced.items} items, counted up to {announced.last_day}.")
    return announced.items
