"""The inputs of the versions that serve on one port, in a folder that their servers share."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from shortlist.serving.server.runtime.metrics import Metrics
from shortlist.storage.artefacts import IntegrityError, read_json, write_json

FOLDER: Final = "inputs"
"""Name of the folder, beside the prediction log."""
_CARRIED: Final = "carried"
"""Sub-folder with an empty file per input that some request carried and some version passed over."""
_READ_SECONDS: Final = 1.0
"""Shortest time between two readings of the folder, which requests with unknown names cause."""


class InputNames(NamedTuple):
    """Names of a version's inputs."""

    accepted: frozenset[str]
    """All that a request may contain."""
    read: frozenset[str]
    """Those that its model reads."""


class VersionInputs:
    """What other versions on the port accept, so that clients may send a new column before all versions know it.

    Each server writes the names that its version accepts to `<folder>/<version>.json`. The file stays when the version
    is withdrawn: clients that still send its column are not refused.

    Args:
        folder: Folder that the servers of the port share.
        version: The version of this server.
        metrics: Count the requests by the input that was passed over.
    """

    def __init__(self, folder: Path, version: int, metrics: Metrics) -> None:
        self._folder, self._version, self._metrics = folder, version, metrics
        self._names: frozenset[str] = frozenset()
        self._carried: set[str] = set()
        self._read_at = float("-inf")

    def write(self, accepted: Collection[str], read: Collection[str]) -> None:
        """Write the names that this server's version accepts, and those that its model reads."""
        (self._folder / _CARRIED).mkdir(parents=True, exist_ok=True)
        write_json(self._folder / f"{self._version}.json", {"accepted": sorted(accepted), "read": sorted(read)})

    def passes_over(self, name: str) -> bool:
        """Return whether another version accepts an input, and count it if one does."""
        if name not in self._names and time.monotonic() - self._read_at > _READ_SECONDS:
            self._names, self._read_at = self._read(), time.monotonic()
        if name not in self._names:
            return False
        self._metrics.passed_over.labels(name).inc()
        if name not in self._carried:
            self._carried.add(name)
            (self._folder / _CARRIED / name).touch()
        return True

    def _read(self) -> frozenset[str]:
        versions = (int(path.stem) for path in self._folder.glob("*.json") if path.stem != str(self._version))
        names = (read_version_inputs(self._folder, version) for version in versions)
        return frozenset().union(*(version_names.accepted for version_names in names if version_names is not None))


def read_version_inputs(folder: Path, version: int) -> InputNames | None:
    """Return the inputs of a version; None where its server has not written them."""
    try:
        record = read_json(folder / f"{version}.json")
        return InputNames(frozenset(record["accepted"]), frozenset(record["read"]))
    except (IntegrityError, KeyError):
        return None


def carried_inputs(folder: Path) -> frozenset[str]:
    """Return the inputs that requests carried and a version passed over."""
    return frozenset(path.name for path in (folder / _CARRIED).glob("*"))
