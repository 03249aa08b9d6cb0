"""Refreshed releases, updated between trainings: written, kept beside the features, and announced to servers."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from shortlist.contracts import Files, ShortlistError
from shortlist.data.reading.remote_input import fetch_input
from shortlist.features.feast.feast_store_location import FeastStoreLocation
from shortlist.slates.candidate_columns import check_slates
from shortlist.slates.recommender import Recommender
from shortlist.slates.release import SOURCES, open_release, read_sections, refreshed_digest, write_release
from shortlist.slates.retrieval.retriever import Retriever, read_released_section, refresh_retrieval
from shortlist.spec.data import Data
from shortlist.storage.artefacts import IntegrityError, atomic_folder, folder_digest, verify_manifest
from shortlist.storage.objects import local_copy
from shortlist.storage.tables import DayTable

RELEASES: Final = "releases.json"
"""File beside the pointer to the served features: the newest refreshed release by the digest of its training's
release."""
_FOLDER: Final = "releases"
_MAX_FOLDERS: Final = 20
"""Number of refreshed releases that are kept on this machine, so that their slates can be reproduced."""


class RefreshedRelease(BaseModel):
    """Announcement of a refreshed release to servers."""

    model_config = ConfigDict(frozen=True)

    folder: str
    """Path or address."""
    digest: str
    """Digest of the folder's files."""
    items: int
    """Number of items that can be recommended."""
    last_day: date
    """Newest day of the log that was used."""
    published: datetime


_ANNOUNCED: Final = TypeAdapter(dict[str, RefreshedRelease])


def refresh_release(blessed: Path, data: Data, valid_log: Path, location: str, folder: Path, seed: int) -> None:
    """Write a release with the sections of a training's release, updated to a log's newest days; all or nothing.

    Args:
        blessed: The training's release.
        data: The spec's section.
        valid_log: Folder of the validated log.
        location: Location of the user's files, for lists of items; empty for a generated log.
        folder: Folder to write.
        seed: Seed of all random choices.

    Raises:
        ShortlistError: The log lacks what a stage reads, there are too few items, or a list cannot be read.
        IntegrityError: A file of the training's release was changed.
    """
    verify_manifest(blessed)
    filters, ordering = read_sections(blessed)
    section = read_released_section(blessed / SOURCES)
    try:
        section.check(data)
        check_slates(data, section, filters, ordering)
    except ValueError as problem:
        raise ShortlistError(f"{problem}. The released stages read it: declare it again, or train anew") from None
    with ExitStack() as scratch:
        sources = Path(scratch.enter_context(TemporaryDirectory(dir=folder.parent, prefix=".sources-"))) / SOURCES
        refresh_retrieval(blessed / SOURCES, data, DayTable.open(valid_log, Files.LOG), sources, seed)
        files = None
        if any(rule.file for rule in filters.rules):
            input_path = scratch.enter_context(fetch_input(location))
            files = input_path if input_path.is_dir() else input_path.parent
        write_release(
            sources, data, filters, ordering, valid_log, files, folder, refreshes=folder_digest(blessed)
        )  # fmt: skip


def announce_release(store_location: FeastStoreLocation, folder: Path) -> RefreshedRelease:
    """Store a refreshed release where servers find it, and announce it; servers watch the announcement.

    Args:
        store_location: The spec's Feast store.
        folder: Folder that `refresh_release` wrote.

    Raises:
        ShortlistError: It cannot be written; servers keep their release.
    """
    verify_manifest(folder)
    facts, digest = Retriever.open(folder / SOURCES).facts, folder_digest(folder)
    with store_location.write_lock():
        release = RefreshedRelease(
            folder=_keep(store_location, folder, digest),
            digest=digest,
            items=facts["items"],
            last_day=facts["last_day"],
            published=datetime.now(UTC),
        )
        releases = {**announced_releases(store_location), refreshed_digest(folder): release}
        newest = sorted(releases.items(), key=lambda digest_and_release: digest_and_release[1].published)[
            -_MAX_FOLDERS:
        ]
        store_location.objects.write(RELEASES, _ANNOUNCED.dump_json(dict(newest), indent=2))
        _prune(store_location, {release.digest for _, release in newest})
    return release


def announced_releases(store_location: FeastStoreLocation) -> dict[str, RefreshedRelease]:
    """Return the announced releases by the digest of the training's release.

    Raises:
        IntegrityError: The announcement is not readable.
    """
    content = store_location.objects.read(RELEASES)
    try:
        return {} if content is None else _ANNOUNCED.validate_json(content)
    except ValidationError as error:
        raise IntegrityError(
            f"{store_location.objects.url(RELEASES)}: {error.errors()[0]['msg']}; refresh again to write it anew"
        ) from None


def open_refreshed(release: RefreshedRelease, blessed: str, data: Data) -> Recommender:
    """Return the stages of an announced release; fetched files are mapped into memory and deleted.

    Args:
        release: The announced release.
        blessed: Digest of the training's release that it must refresh.
        data: The spec's section that the version was trained with.

    Raises:
        IntegrityError: Its files are not those that were announced, or bring another release up to date.
    """
    with TemporaryDirectory(prefix="shortlist-release-") as fetched:
        folder = local_copy(release.folder, Path(fetched))
        stages = open_release(folder, data)
        if stages.digest != release.digest:
            raise IntegrityError(
                f"{release.folder}: digest {stages.digest}, but {release.digest} was announced; refresh again"
            )
        if (of := refreshed_digest(folder)) != blessed:
            raise IntegrityError(
                f"{release.folder}: brings release {of or 'of no version'} up to date, not {blessed}; refresh again"
            )
    return stages


def find_kept_folder(store_location: FeastStoreLocation, digest: str) -> Path:
    """Return the folder of a refreshed release, as it was when it made slates.

    Raises:
        ShortlistError: The folder is missing, or was changed.
    """
    folder = local_copy(_address(store_location, digest))
    if not folder.is_dir():
        raise ShortlistError(
            f"{folder}: missing; of refreshed releases the newest {_MAX_FOLDERS} are kept, and the slate was made with"
            " an older one"
        )
    actual_digest = folder_digest(folder)
    if actual_digest != digest:
        raise IntegrityError(f"{folder}: digest {actual_digest}, wanted {digest}; its files were changed")
    return folder


def _address(store_location: FeastStoreLocation, digest: str) -> str:
    if store_location.publishes or store_location.folder is None:
        return store_location.objects.url(f"{_FOLDER}/{digest}")
    return str(store_location.folder.resolve() / _FOLDER / digest)


def _keep(store_location: FeastStoreLocation, folder: Path, digest: str) -> str:
    if store_location.publishes or store_location.folder is None:
        return store_location.objects.put_folder(folder, f"{_FOLDER}/{digest}")
    to = Path(_address(store_location, digest))
    if not to.is_dir() or folder_digest(to) != digest:
        with atomic_folder(to) as staging:
            shutil.copytree(folder, staging, dirs_exist_ok=True)
    return str(to)


def _prune(store_location: FeastStoreLocation, announced: set[str]) -> None:
    """Delete old releases of a folder; object stores have their own lifecycle rules."""
    if store_location.publishes or store_location.folder is None:
        return
    folders = [path for path in (store_location.folder / _FOLDER).iterdir() if path.is_dir()]
    for path in sorted(folders, key=lambda folder: folder.stat().st_mtime, reverse=True)[_MAX_FOLDERS:]:
        if path.name not in announced:
            shutil.rmtree(path)
