"""Files that outlast a run, in a folder or an object store."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

from shortlist.contracts import ShortlistError, StoreUnavailableError
from shortlist.storage.artefacts import IntegrityError, atomic_folder, is_disk_full, sha256
from shortlist.storage.objects_record import (
    RECORD,
    check_same_files,
    checked_key,
    digests_below,
    files_below,
    read_record,
    write_record,
)
from shortlist.storage.storage_config import StorageConfig, redact_passwords
from shortlist.system.registry import AddressRegistry

CACHE_VARIABLE: Final = "SHORTLIST_CACHE"
"""Environment variable with the folder of fetched copies; by default one of the system's temporary folder."""
OBJECT_STORES: Final = AddressRegistry(
    "object_stores",
    {
        "s3": "shortlist.storage.object_clients:s3_client",
        "gs": "shortlist.storage.object_clients:gcs_client",
        "file": "shortlist.storage.object_clients:folder_client",
    },
)
"""By the scheme of an address, `module:function` of what returns obstore's client (an `obstore.store.ObjectStore`, or
what has its methods) for an address; imported when it is needed."""

_NO_BUCKET: Final = ("NoSuchBucket", "bucket does not exist")
_REFUSED: Final = ("403 Forbidden", "401 Unauthorized", "performing token request", "//169.254.169.254/")
_UNAVAILABLE: Final = ("HTTP error: ", "status code: 50")


class ObjectStore:
    """Files by key (`views/<digest>/a.parquet`) below one root.

    The client tries again after errors that pass, and finds credentials.

    Args:
        url: Address of the root: `s3://bucket/prefix`, `gs://bucket/prefix`, or `file:///folder`.

    Raises:
        ShortlistError: Nothing keeps such addresses.
    """

    def __init__(self, url: str) -> None:
        self.root = url.rstrip("/")
        """Address, without a slash at its end."""
        self._scheme, _, self._path = self.root.partition("://")
        if self._scheme not in OBJECT_STORES and self._scheme not in OBJECT_STORES.complete():
            schemes = ", ".join(f"{scheme}://" for scheme in OBJECT_STORES)
            raise ShortlistError(f"{url}: no object store is known by '{self._scheme}'; wanted one of {schemes}")

    @classmethod
    def in_folder(cls, folder: Path) -> Self:
        """Return the files below a folder, which is made at the first call."""
        return cls(folder.resolve().as_uri())

    @cached_property
    def _client(self) -> Any:
        return OBJECT_STORES.load(self._scheme)(self.root)

    def put_folder(self, folder: Path, key: str) -> str:
        """Copy a folder to a key that has nothing yet, or the very same; its record comes last; return its address.

        Raises:
            IntegrityError: Something else is there, or the folder changed meanwhile.
            ShortlistError: The store is unavailable, refuses, is full, or its bucket is gone; nothing then looks whole.
        """
        address, digests = self.url(key), digests_below(folder)
        content = self.read(f"{key}/{RECORD}")
        if content is None:
            for name in digests:
                self.put_file(folder / name, f"{key}/{name}")
            check_same_files(digests_below(folder), digests, str(folder))
            if self.create(f"{key}/{RECORD}", write_record(digests)):
                return address
            content = self.read(f"{key}/{RECORD}") or b""
        check_same_files(read_record(content, address), digests, address)
        return address

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
        address, content = self.url(key), self.read(f"{key}/{RECORD}")
        if content is None:
            raise IntegrityError(f"{address}: nothing whole is there; the step that writes it did not finish")
        digests = files_below(read_record(content, address), part, address)
        if to.is_dir() and any(to.iterdir()) and digests_below(to) == digests:
            return to
        begin = f"{key}/{part}" if part else key
        to.parent.mkdir(parents=True, exist_ok=True)
        # Two processes may fetch the same: each has a staging folder of its own, and the last one's stays.
        with tempfile.TemporaryDirectory(prefix=f".{to.name}.", dir=to.parent) as scratch:
            fetched = Path(scratch) / to.name
            with atomic_folder(fetched) as staging:
                for name, digest in digests.items():
                    self._fetch_file(f"{begin}/{name}", staging / name, digest)
            if to.exists():
                to.rename(Path(scratch) / "before")
            fetched.rename(to)
        return to

    def put_file(self, file: Path, key: str) -> None:
        """Copy a file to a key, whole or not at all."""
        with self._explained():
            self._client.put(checked_key(key), file)

    def read(self, key: str) -> bytes | None:
        """Return a file; None when there is none."""
        with self._explained():
            try:
                return bytes(self._client.get(checked_key(key)).bytes())
            except FileNotFoundError as error:
                if any(text in str(error) for text in _NO_BUCKET):
                    raise
                return None

    def write(self, key: str, content: bytes) -> None:
        """Write a file whole, in place of what is there."""
        with self._explained():
            self._client.put(checked_key(key), content)

    def create(self, key: str, content: bytes) -> bool:
        """Write a file unless there is one; return True for exactly one of all processes that try at once."""
        from obstore.exceptions import AlreadyExistsError

        with self._explained():
            try:
                self._client.put(checked_key(key), content, mode="create")
            except AlreadyExistsError:
                return False
            return True

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with a prefix such as `views/`, sorted."""
        folder = prefix.rpartition("/")[0]
        with self._explained():
            keys = [file["path"] for files in self._client.list(folder or None) for file in files]
        return sorted(key for key in keys if key.startswith(prefix))

    def url(self, key: str) -> str:
        """Return the address of a key."""
        return f"{self.root}/{checked_key(key)}"

    def _fetch_file(self, key: str, to: Path, digest: str) -> None:
        with self._explained():
            try:
                self._download(key, to)
            except FileNotFoundError as error:
                if any(text in str(error) for text in _NO_BUCKET):
                    raise
                raise IntegrityError(f"{self.url(key)}: named in {RECORD}, and not there; publish again") from None
        if (fetched_digest := sha256(to)) != digest:
            raise IntegrityError(
                f"{self.url(key)}: changed after it was published (sha256 {fetched_digest[:12]}, {digest[:12]})"
            )

    def _download(self, key: str, to: Path) -> None:
        to.parent.mkdir(parents=True, exist_ok=True)
        with to.open("wb") as file:
            for chunk in self._client.get(key).stream():
                file.write(chunk)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the client's errors into ones that say what to do; a secret is in none of them."""
        from obstore.exceptions import BaseError

        try:
            yield
        except ShortlistError:
            raise
        except (BaseError, OSError) as error:
            text = str(error).partition("\n\nDebug source")[0]
            if isinstance(error, OSError) and "Error performing" not in text:
                raise  # of this machine
            is_unavailable = any(part in text for part in _UNAVAILABLE) and not any(part in text for part in _REFUSED)
            explained = StoreUnavailableError if is_unavailable else ShortlistError
            raise explained(f"{self.root}: {self._reason(error, text)}") from None

    def _reason(self, error: Exception, text: str) -> str:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        at = f" at {redact_passwords(endpoint)}" if endpoint and self._scheme == "s3" else ""
        if is_disk_full(error):
            return "the disk is full; no incomplete file is left. Free space, or choose another folder, and run again."
        if any(part in text for part in _NO_BUCKET):
            bucket = self._path.partition("/")[0]
            return f"there is no bucket '{bucket}'{at}; make it, or correct runtime.objects.url"
        if any(part in text for part in _REFUSED):
            variables = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            variables = variables if self._scheme == "s3" else "GOOGLE_APPLICATION_CREDENTIALS"
            return f"the store{at} refuses the credentials, or there are none; check {variables}"
        if any(part in text for part in _UNAVAILABLE):
            return f"the store{at} cannot be reached; check AWS_ENDPOINT_URL and the network"
        return f"the store{at} says: {redact_passwords(text)}"


def open_object_store(stores: StorageConfig) -> ObjectStore:
    """Return the files that the stores name: those at an address, or those of `objects/` in the folder.

    Raises:
        ShortlistError: Nothing keeps such addresses.
    """
    if stores.objects:
        return ObjectStore(stores.objects)
    return ObjectStore.in_folder(stores.path_in_folder("objects"))


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
    return ObjectStore(root).fetch_folder(key, to, part)


def read_file(address: str, name: str) -> bytes:
    """Return one file of a folder that an address or a path names, without copying the folder; it is not verified.

    Args:
        address: As `local_copy` reads it.
        name: Name of the file in the folder.

    Raises:
        IntegrityError: It is not there.
        ShortlistError: The store is unavailable or refuses.
    """
    if "://" not in address:
        path = Path(address) / name
        content = path.read_bytes() if path.is_file() else None
    else:
        whole, _, part = address.partition("#")
        root, _, key = whole.rpartition("/")
        content = ObjectStore(root).read("/".join(filter(None, (key, part, name))))
    if content is None:
        raise IntegrityError(f"{address}: there is no {name}")
    return content


def cache_folder() -> Path:
    """Return the folder of fetched copies; nothing in it is missed when it is deleted."""
    folder = Path(os.environ.get(CACHE_VARIABLE) or Path(tempfile.gettempdir()) / f"shortlist-cache-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
