"""Files that outlast a run, in a folder or an object store."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Objects(Protocol):
    """Files by key (`views/<digest>/a.parquet`) below one root."""

    root: str
    """Its address: `s3://bucket/prefix` or `file:///...`."""

    def put_folder(self, folder: Path, key: str) -> str:
        """Copy a folder to a key that has nothing yet, or the very same; its manifest comes last; return its address.

        Raises:
            IntegrityError: Something else is there.
            ShortlistError: The store is away, refuses, or its bucket is gone; nothing then looks whole.
        """

    def fetch_folder(self, key: str, to: Path) -> Path:
        """Copy a folder from a key, whole or not at all, and verify it; return `to`. What is there already stays.

        Raises:
            IntegrityError: It is not whole.
            ShortlistError: The store is away or refuses.
        """

    def put_file(self, file: Path, key: str) -> None:
        """Copy a file to a key, whole or not at all."""

    def read(self, key: str) -> bytes | None:
        """Return a file; None when there is none."""

    def write(self, key: str, content: bytes) -> None:
        """Write a file whole, in place of what is there."""

    def keys(self, prefix: str) -> list[str]:
        """Return the keys below a prefix, sorted."""

    def url(self, key: str) -> str:
        """Return the address of a key."""
