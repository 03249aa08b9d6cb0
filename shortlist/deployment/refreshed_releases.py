"""What serves, and what is about to, gets newer candidates without a training."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from shortlist.contracts import ShortlistError
from shortlist.features.feast_store_location import spec_feast_store_location
from shortlist.recommending.refreshed import announce_release, refresh_release
from shortlist.spec.data import Data
from shortlist.storage.storage_config import StorageConfig
from shortlist.tracking.registry import RELEASE, Alias
from shortlist.tracking.steps import note
from shortlist.training.training import RunContext


def refresh_releases(context: RunContext, data: Data, valid_log: Path, location: str, out: Path, seed: int) -> int:
    """Refresh the releases of the champion and of the candidate, and announce them; return the items of the champion's.

    A version without a release is left alone. What is wrong with the candidate's alone is noted, and stops nothing.

    Args:
        context: Spec and stores.
        data: The spec's section.
        valid_log: Folder of the validated log.
        location: Where the user's files are; empty for a generated log.
        out: Folder to write the releases into, one folder each.
        seed: Of whatever is drawn.

    Raises:
        ShortlistError: The champion's cannot be refreshed; its servers keep the one that they have.
    """
    registry, items, done = context.tracker.registry, 0, set[str]()
    out.mkdir(parents=True, exist_ok=True)
    aliases: tuple[Alias, ...] = ("champion", "candidate")
    for alias in aliases:
        version = registry.version_of(alias)
        digest = None if version is None else registry.tags_of(version).get(RELEASE)
        if version is None or digest is None or digest in done:
            continue
        done.add(digest)
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
    made = announce_release(place, folder)
    note(f"Version {version} recommends from {made.items} items, counted up to {made.last_day}.")
    return made.items
