"""What is known of the versions whose answers are watched: model, preprocessing, reference."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from monitoring.reference.reference import ModelReference, Reference
from shortlist.contracts import Files, ShortlistError
from shortlist.features.preprocessing import Preprocessing
from shortlist.tracking.registry import Registry


@dataclass(frozen=True)
class WatchedVersion:
    """A registered version."""

    version: int
    model: str
    """What the user calls the model."""
    run_id: str
    """Of its MLflow run."""
    folder: Path
    reference_folder: Path | None

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """What it was trained with."""
        return Preprocessing.load(self.folder / Files.PREPROCESSING)

    @cached_property
    def reference(self) -> Reference:
        """Its training data's distributions.

        Raises:
            ShortlistError: It was registered without, or they were changed.
        """
        if self.reference_folder is None:
            raise ShortlistError(
                f"version {self.version} was registered without a reference of its training data, so live traffic has"
                " nothing to be compared with; train again (make run) and roll the new version out"
            )
        return Reference.load(self.reference_folder)

    @property
    def quality(self) -> ModelReference | None:
        """What it was on its test days."""
        return self.reference.models.get(self.model)


class Versions:
    """The registered versions of a spec, each fetched once."""

    def __init__(self, registry: Registry, scratch: Path) -> None:
        """Fetch nothing yet.

        Args:
            registry: Of the spec.
            scratch: Folder for files that have to be fetched from a remote store.
        """
        self._registry = registry
        self._scratch = scratch
        self._known: dict[int, WatchedVersion] = {}

    def __getitem__(self, version: int) -> WatchedVersion:
        """Return a version.

        Raises:
            ShortlistError: It was never registered, its files were changed, or MLflow cannot be reached.
        """
        if version not in self._known:
            found = self._registry.fetch(version, self._scratch / f"v{version}")
            reference = self._registry.reference_of(version, self._scratch / f"r{version}")
            self._known[version] = WatchedVersion(
                version, found.name or found.kind, found.run_id, found.folder, reference
            )
        return self._known[version]
