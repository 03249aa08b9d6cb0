"""Clients of object stores by obstore: S3 and whatever speaks it, GCS, a folder.

obstore's threads do not survive a fork: a process that has used a client must not fork one that uses another. The
server of steps only imports before it forks.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from obstore.store import GCSStore, LocalStore, S3Store

from shortlist.contracts import ShortlistError
from shortlist.storage.artefacts import sync_path

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

_CLIENT: Final[ClientConfig] = {
    "allow_http": True,
    "connect_timeout": timedelta(seconds=10),
    "read_timeout": timedelta(seconds=60),
    "timeout": timedelta(hours=1),  # of a whole file
}
_RETRIES: Final[RetryConfig] = {"max_retries": 4, "retry_timeout": timedelta(minutes=1)}
"""A host that never answers is given up within a minute."""


def s3_client(url: str) -> S3Store:
    """Return the client of `s3://bucket/prefix`, configured by the variables and files that AWS's own tools read.

    Raises:
        ShortlistError: There are no credentials.
    """
    options: dict[str, Any] = {}
    if "AWS_ACCESS_KEY_ID" not in os.environ:
        options["credential_provider"] = _boto3_credentials(url)
    return S3Store.from_url(url, client_options=_CLIENT, retry_config=_RETRIES, **options)


def gcs_client(url: str) -> GCSStore:
    """Return the client of `gs://bucket/prefix`."""
    return GCSStore.from_url(url, client_options=_CLIENT, retry_config=_RETRIES)


class FolderClient(LocalStore):
    """A folder, made when it is first used, in which a file survives a power failure once it is written."""

    def put(self, path: str, file: Any, **options: Any) -> Any:
        """Write a file; see `obstore.put`."""
        outcome = super().put(path, file, **options)
        written = Path(str(self.prefix)) / path
        sync_path(written)
        sync_path(written.parent)
        return outcome


def folder_client(url: str) -> FolderClient:
    """Return the client of `file:///folder`."""
    return FolderClient(unquote(urlsplit(url).path), mkdir=True)


def _boto3_credentials(url: str) -> Any:
    """Return what finds credentials in files, in a pod's identity and on a machine of AWS, as boto3 does."""
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None  # obstore finds those of a pod or machine
    try:
        return Boto3CredentialProvider()
    except Exception:  # botocore has an error of its own for each kind of file and profile
        raise ShortlistError(
            f"{url}: the store refuses the credentials, or there are none; check AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY"
        ) from None
