"""The inputs of the versions that serve on one port, in a store that their servers share."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final, NamedTuple

from shortlist.serving.server.features.refresher import Refresher
from shortlist.serving.server.runtime.metrics import Metrics
from shortlist.storage.objects import ObjectStore

_AREA: Final = "inputs/"
_CARRIED: Final = f"{_AREA}carried/"
"""Key of an empty file per input that some request carried and some version passed over."""


class InputNames(NamedTuple):
    """Names of a version's inputs."""

    accepted: frozenset[str]
    """All that a request may contain."""
    read: frozenset[str]
    """Those that its model reads."""


class VersionInputs(Refresher):
    """What other versions on the port accept, so that clients may send a new column before all versions know it.

    Each server writes the names that its version accepts to `inputs/<version>.json`. The file stays when the version is
    withdrawn: clients that still send its column are not refused. A thread reads and writes, so that no request waits.

    Args:
        objects: Files that the servers of the port share: those of the spec's Feast store.
        version: The version of this server.
        metrics: Count the requests by the input that was passed over.
        poll_seconds: Time between two readings of the store.
    """

    def __init__(self, objects: ObjectStore, version: int, metrics: Metrics, poll_seconds: float) -> None:
        super().__init__("inputs of other versions", poll_seconds)
        self._objects, self._metrics, self._key = objects, metrics, _key(version)
        self._own_names = InputNames(frozenset(), frozenset())
        self._is_written = False
        self._accepted_by_key: dict[str, frozenset[str]] = {}
        self._accepted: frozenset[str] = frozenset()
        self._carried: set[str] = set()
        self._written_carried: set[str] = set()

    def declare(self, accepted: Collection[str], read: Collection[str]) -> None:
        """Declare the names that this server's version accepts, and those that its model reads."""
        self._own_names, self._is_written = InputNames(frozenset(accepted), frozenset(read)), False

    def passes_over(self, name: str) -> bool:
        """Return whether another version accepts an input, and count it if one does."""
        if name not in self._accepted:
            return False
        self._metrics.passed_over.labels(name).inc()
        self._carried.add(name)
        return True

    def _refresh(self) -> None:
        if not self._is_written:
            names = {kind: sorted(values) for kind, values in self._own_names._asdict().items()}
            self._objects.write(self._key, json.dumps(names).encode())
            self._is_written = True
        for name in self._carried - self._written_carried:
            self._objects.create(f"{_CARRIED}{name}", b"")
            self._written_carried.add(name)
        for key in self._objects.keys(_AREA):
            if key.endswith(".json") and key != self._key and key not in self._accepted_by_key:
                names_of_version = _read(self._objects, key)
                if names_of_version is not None:
                    self._accepted_by_key[key] = names_of_version.accepted
        self._accepted = frozenset().union(*self._accepted_by_key.values())
        self.problem = None


def read_version_inputs(objects: ObjectStore, version: int) -> InputNames | None:
    """Return the inputs of a version; None where its server has not written them."""
    return _read(objects, _key(version))


def carried_inputs(objects: ObjectStore) -> frozenset[str]:
    """Return the inputs that requests carried and a version passed over."""
    return frozenset(key.removeprefix(_CARRIED) for key in objects.keys(_CARRIED))


def _key(version: int) -> str:
    return f"{_AREA}{version}.json"


def _read(objects: ObjectStore, key: str) -> InputNames | None:
    try:
        record = json.loads(objects.read(key) or b"")
        return InputNames(frozenset(record["accepted"]), frozenset(record["read"]))
    except (ValueError, KeyError, TypeError):
        return None
