"""Files that outlast a run, in a folder or an object store."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final, Protocol

from shortlist.contracts import ShortlistError
from shortlist.storage.storage_config import StorageConfig
from shortlist.system.registry import AddressRegistry

CACHE_VARIABLE: Final = "SHORTLIST_CACHE"
"""Environment variable with the folder of fetched copies; by default one of the system's temporary folder."""


class ObjectStore(Protocol):
    """Files by key (`views/<digest>/a.parquet`) below one root."""

    root: str
    """Its address: `s3://bucket/prefix` or `file:///...`."""

    def put_folder(self, folder: Path, key: str) -> str:
        """Copy a folder to a key that has nothing yet, or the very same; its record comes last; return its address.

        Raises:
            IntegrityError: Something else is there.
            ShortlistError: The store is unavailable, refuses, or its bucket is gone; nothing then looks whole.
        """

    def fetch_folder(self, key: str, to: Path, part: str = "") -> Path:
        """Copy a folder from a key, whole or not at all, and verify it; return `to`. What is there already stays.

        Args:
            key: Of the folder.
            to: Folder to make.
            part: Only this folder inside it.

        Raises:
            IntegrityError: It is not whole.
            ShortlistError: The store is unavailable or refuses.
        """

    def put_file(self, file: Path, key: str) -> None:
        """Copy a file to a key, whole or not at all."""

    def read(self, key: str) -> bytes | None:
        """Return a file; None when there is none."""

    def write(self, key: str, content: bytes) -> None:
        """Write a file whole, in place of what is there."""

    def create(self, key: str, content: bytes) -> bool:
        """Write a file unless there is one; return True for exactly one of all processes that try at once."""

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with a prefix such as `views/`, sorted."""

    def url(self, key: str) -> str:
        """Return the address of a key."""


OBJECT_STORES: Final = AddressRegistry(
    "object_stores",
    {
        "s3": "shortlist.storage.objects_bucket:BucketObjectStore",
        "gs": "shortlist.storage.objects_bucket:BucketObjectStore",
        "file": "shortlist.storage.objects_bucket:BucketObjectStore",
    },
)
"""Who keeps the files at an address, by its scheme, as `module:class`; imported when it is needed, for it loads the
store's client. Its one argument is the address."""


def open_object_store(stores: StorageConfig) -> ObjectStore:
    """Return the files that the stores name: those at an address, or those of `objects/` in the folder.

    Raises:
        ShortlistError: The package that speaks to the object store is not installed, or nobody keeps such addresses.
    """
    if stores.objects:
        scheme = stores.objects.partition("://")[0]
        if scheme not in OBJECT_STORES and scheme not in OBJECT_STORES.complete():
            known = ", ".join(f"{each}://" for each in OBJECT_STORES)
            raise ShortlistError(f"{stores.objects}: no object store is known by '{scheme}'; wanted one of {known}")
        objects: ObjectStore = OBJECT_STORES.load(scheme)(stores.objects)
        return objects
    from shortlist.storage.objects_folder import FolderObjectStore

    return FolderObjectStore(stores.path_in_folder("objects"))


def local_copy(address: str, cache: Path | None = None) -> Path:
    """Return a folder on this machine with what an address or a path names; what is fetched is verified.

    Args:
        address: From `ObjectStore.put_folder`, perhaps `#` and a folder inside; or a path of this machine, which stays.
        cache: Folder for fetched copies; see `cache_folder`.

    Raises:
        ShortlistError: It cannot be fetched.
    """
    if "://" not in address:
        return Path(address)
    whole, _, part = address.partition("#")
    root, _, key = whole.rpartition("/")
    copies = cache or cache_folder()
    to = copies / hashlib.sha256(root.encode()).hexdigest()[:12] / key / (part or "whole")
    return open_object_store(StorageConfig(objects=root)).fetch_folder(key, to, part)


def cache_folder() -> Path:
    """Return the folder of fetched copies; nothing in it is missed when it is deleted."""
    folder = Path(os.environ.get(CACHE_VARIABLE) or Path(tempfile.gettempdir()) / f"shortlist-cache-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
