"""A pod's init container: `python -m shortlist.rollout.kserve.servers.fetch` with --source, --key, --digest, --to."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from shortlist.contracts import ShortlistError
from shortlist.storage.artefacts import IntegrityError, folder_digest
from shortlist.storage.objects import ObjectStore, open_object_store
from shortlist.storage.storage_config import StorageConfig

REFUSED = 3
"""Exit code when the files have another digest or cannot be fetched."""


def fetch(objects: ObjectStore, key: str, digest: str, to: Path) -> Path:
    """Copy a published folder to this pod and verify it against the digest in the pod's immutable manifest.

    Raises:
        IntegrityError: The files have another digest, whatever the store's record says.
        ShortlistError: The store is unavailable or refuses.
    """
    folder = objects.fetch_folder(key, to)
    if (fetched_digest := folder_digest(folder)) != digest:
        raise IntegrityError(
            f"{objects.url(key)}: digest {fetched_digest}, but this pod serves {digest}; nothing is started"
        )
    return folder


def main(arguments: list[str]) -> int:
    """Fetch; return the exit code."""
    parser = argparse.ArgumentParser(prog="shortlist.rollout.kserve.servers.fetch")
    parser.add_argument("--source", required=True, help="root of the object store, e.g. s3://bucket/prefix")
    parser.add_argument("--key", required=True, help="key of the folder below it")
    parser.add_argument("--digest", required=True, help="digest of its files")
    parser.add_argument("--to", required=True, type=Path, help="folder to write")
    options = parser.parse_args(arguments)
    try:
        folder = fetch(
            open_object_store(StorageConfig(objects=options.source)), options.key, options.digest, options.to
        )
    except ShortlistError as error:
        sys.stderr.write(f"refused to start: {error}\n")
        return REFUSED
    sys.stderr.write(f"{folder}: fetched and verified ({options.digest})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
