"""Files that outlast a run, in an object store: S3, whatever speaks S3, or GCS."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from shortlist.contracts import ShortlistError, StoreUnavailableError
from shortlist.storage.artefacts import IntegrityError, atomic_folder, sha256
from shortlist.storage.objects_record import (
    RECORD,
    check_same_files,
    checked_key,
    digests_below,
    files_below,
    read_record,
    write_record,
)
from shortlist.storage.storage_config import redact_passwords

_CONNECT_SECONDS: Final = 10
"""The client tries several times: a host that never answers is given up within a minute."""
_PACKAGES: Final = {"s3": "s3fs (requirements/cluster.txt)", "gs": "gcsfs"}
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "s3": {"config_kwargs": {"connect_timeout": _CONNECT_SECONDS}, "use_listings_cache": False},
    "gs": {"use_listings_cache": False},
}
_NO_CREDENTIALS: Final = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "HttpError")
_AWAY: Final = ("ConnectionError", "HTTPClientError", "ClientConnectorError", "TimeoutError")


class BucketObjectStore:
    """`ObjectStore` below a bucket's prefix.

    The client itself tries again after errors that pass (as botocore is configured), and finds credentials.

    Args:
        url: `s3://bucket/prefix` or `gs://bucket/prefix`.

    Raises:
        ShortlistError: The package that speaks the protocol is not installed.
    """

    def __init__(self, url: str) -> None:
        self.root = url.rstrip("/")
        self._protocol, _, path = self.root.partition("://")
        self._bucket = path.partition("/")[0]
        self._files = _open(self._protocol)

    def put_folder(self, folder: Path, key: str) -> str:
        """Copy a folder to a key that has nothing yet, or the very same; its record comes last; return its address.

        Raises:
            IntegrityError: Something else is there, or the folder changed meanwhile.
            ShortlistError: The store is unavailable, refuses, or its bucket is gone; nothing then looks whole.
        """
        where, digests = self.url(key), digests_below(folder)
        known = self.read(f"{key}/{RECORD}")
        if known is None:
            for name in digests:
                self.put_file(folder / name, f"{key}/{name}")
            check_same_files(digests_below(folder), digests, str(folder))
            if self.create(f"{key}/{RECORD}", write_record(digests)):
                return where
            known = self.read(f"{key}/{RECORD}") or b""
        check_same_files(read_record(known, where), digests, where)
        return where

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
        where, content = self.url(key), self.read(f"{key}/{RECORD}")
        if content is None:
            raise IntegrityError(f"{where}: nothing whole is there; the step that writes it did not finish")
        digests = files_below(read_record(content, where), part, where)
        if to.is_dir() and any(to.iterdir()) and digests_below(to) == digests:
            return to
        begin = f"{key}/{part}" if part else key
        to.parent.mkdir(parents=True, exist_ok=True)
        # Two processes may fetch the same: each has a staging folder of its own, and the last one's stays.
        with tempfile.TemporaryDirectory(prefix=f".{to.name}.", dir=to.parent) as own:
            fetched = Path(own) / to.name
            with atomic_folder(fetched) as staging:
                for name, digest in digests.items():
                    self._fetch(f"{begin}/{name}", staging / name, digest)
            if to.exists():
                to.rename(Path(own) / "before")
            fetched.rename(to)
        return to

    def put_file(self, file: Path, key: str) -> None:
        """Copy a file to a key, whole or not at all."""
        with self._explained():
            self._files.put_file(str(file), self._path(key))

    def read(self, key: str) -> bytes | None:
        """Return a file; None when there is none."""
        with self._explained():
            try:
                return bytes(self._files.cat_file(self._path(key)))
            except FileNotFoundError as error:
                if _code(error) == "NoSuchBucket":
                    raise
                return None

    def write(self, key: str, content: bytes) -> None:
        """Write a file whole, in place of what is there."""
        with self._explained():
            self._files.pipe_file(self._path(key), content)

    def create(self, key: str, content: bytes) -> bool:
        """Write a file unless there is one; return True for exactly one of all processes that try at once."""
        with self._explained():
            try:
                self._files.pipe_file(self._path(key), content, mode="create")
            except (OSError, ValueError) as error:
                if isinstance(error, FileExistsError) or _code(error) in ("PreconditionFailed", "412"):
                    return False
                raise
            return True

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with a prefix such as `views/`, sorted."""
        below = self._path("")
        with self._explained():
            found = self._files.find(below.rstrip("/"), prefix=prefix)
        return sorted(path.removeprefix(below) for path in found)

    def url(self, key: str) -> str:
        """Return the address of a key."""
        return f"{self.root}/{checked_key(key)}"

    def _path(self, key: str) -> str:
        return f"{self.root.partition('://')[2]}/{checked_key(key) if key else ''}"

    def _fetch(self, key: str, to: Path, digest: str) -> None:
        to.parent.mkdir(parents=True, exist_ok=True)
        with self._explained():
            try:
                self._files.get_file(self._path(key), str(to))
            except FileNotFoundError as error:
                if _code(error) == "NoSuchBucket":
                    raise
                raise IntegrityError(f"{self.url(key)}: named in {RECORD}, and not there; publish again") from None
        if (got := sha256(to)) != digest:
            raise IntegrityError(f"{self.url(key)}: changed after it was published (sha256 {got[:12]}, {digest[:12]})")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the client's errors into ones that say what to do; a secret is in none of them."""
        try:
            yield
        except ShortlistError:
            raise
        except Exception as error:
            kinds = {kind.__name__ for kind in (*type(error).__mro__, *type(error.__cause__).__mro__)}
            if not kinds & {"OSError", "BotoCoreError", "ClientError", "HttpError", "TimeoutError"}:
                raise
            unavailable = kinds & set(_AWAY) and not kinds & set(_NO_CREDENTIALS)
            explained = StoreUnavailableError if unavailable else ShortlistError
            raise explained(f"{self.root}: {self._reason(error, kinds)}") from None

    def _reason(self, error: Exception, kinds: set[str]) -> str:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        at = f" at {redact_passwords(endpoint)}" if endpoint and self._protocol == "s3" else ""
        if _code(error) == "NoSuchBucket" or "bucket does not exist" in str(error):
            return f"there is no bucket '{self._bucket}'{at}; make it, or correct runtime.objects.url"
        if isinstance(error, PermissionError) or kinds & set(_NO_CREDENTIALS):
            said = f" ({_code(error)})" if _code(error) else ""
            variables = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            named = variables if self._protocol == "s3" else "GOOGLE_APPLICATION_CREDENTIALS"
            return f"the store{at} refuses the credentials, or there are none{said}; check {named}"
        if kinds & set(_AWAY):
            return f"the store{at} cannot be reached; check AWS_ENDPOINT_URL and the network"
        return f"the store{at} says: {redact_passwords(str(error))}"


def _open(protocol: str) -> Any:
    import fsspec

    try:
        return fsspec.filesystem(protocol, skip_instance_cache=True, **_OPTIONS.get(protocol, {}))
    except ImportError:
        raise ShortlistError(
            f"{protocol}://: needs the package {_PACKAGES[protocol]}, which is not installed"
        ) from None


def _code(error: BaseException) -> str:
    """Return the store's own word for an error; empty when it has none."""
    response = getattr(error.__cause__, "response", None) or getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""
