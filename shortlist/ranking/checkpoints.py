"""The location of a training's checkpoint; the same training, started again, resumes from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from shortlist.storage.objects import ObjectStore


class CheckpointLocation(NamedTuple):
    """The key of one training's checkpoint in the object store, which a retried pod reads on whichever node it runs."""

    objects: ObjectStore
    key: str
    """Contains a digest of everything that the training depends on, so no other training has the same key."""

    def save(self, file: Path) -> None:
        """Replace the checkpoint atomically."""
        self.objects.put_file(file, self.key)

    def load(self) -> bytes | None:
        """Return the checkpoint; None when there is none."""
        return self.objects.read(self.key) or None

    def clear(self) -> None:
        """Empty the checkpoint after the training has ended; an empty file stays."""
        if self.load() is not None:
            self.objects.write(self.key, b"")


_locations: list[CheckpointLocation] = []


def checkpoint_location() -> CheckpointLocation | None:
    """Return where the training of this process writes checkpoints; None: it writes none."""
    return _locations[-1] if _locations else None


@contextmanager
def checkpoint_to(location: CheckpointLocation) -> Iterator[None]:
    """Let trainings in the block write checkpoints; remove them when the block ends without an error."""
    _locations.append(location)
    try:
        yield
        location.clear()
    finally:
        _locations.pop()
