"""Where a training leaves what it has learnt so far, so that the same training, started again, goes on from there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from shortlist.storage.objects import ObjectStore


class CheckpointLocation(NamedTuple):
    """One training's place among the files that outlast a run: a retried pod finds it, whichever node it is on."""

    objects: ObjectStore
    key: str
    """Names everything that the training depends on, so nobody else's checkpoint is there."""

    def save(self, file: Path) -> None:
        """Keep a checkpoint in place of the one before, whole or not at all."""
        self.objects.put_file(file, self.key)

    def load(self) -> bytes | None:
        """Return the checkpoint; None when there is none."""
        return self.objects.read(self.key) or None

    def clear(self) -> None:
        """Forget the checkpoint: the training is done. An empty file stays."""
        if self.load() is not None:
            self.objects.write(self.key, b"")


_places: list[CheckpointLocation] = []


def checkpoint_location() -> CheckpointLocation | None:
    """Return where the training of this process leaves checkpoints; None: nowhere."""
    return _places[-1] if _places else None


@contextmanager
def checkpoint_to(place: CheckpointLocation) -> Iterator[None]:
    """Let trainings in the block leave checkpoints, and forget them once the block has ended well."""
    _places.append(place)
    try:
        yield
        place.clear()
    finally:
        _places.pop()
