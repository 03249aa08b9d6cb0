"""The model versions that answered live requests: their model, preprocessing and reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property, partial
from pathlib import Path

from monitoring.live_quality import slates_reference
from monitoring.reference.reference import ModelReference, Reference
from monitoring.windows.known_columns import SLATE_SIZE
from monitoring.windows.records import WindowReport
from shortlist.contracts import Files, ShortlistError
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.slates.release import released_columns
from shortlist.tracking.registry import ModelRegistry


@dataclass(frozen=True)
class WatchedVersion:
    """A registered version."""

    version: int
    model: str
    """Name of the model in the spec."""
    run_id: str
    """Id of its MLflow run."""
    folder: Path
    reference_folder: Path | None
    fetch_release: Callable[[], Path | None]
    """Returns the folder of its release, which may be large; None when it has none."""
    first_test_day: date | None = None
    """The first day that it has not learnt from and was not chosen by; None where it is not known."""

    def has_learnt(self, moment: datetime) -> bool:
        """Whether a moment is before its test days: it has learnt from the rows of that day, or was chosen by them."""
        return self.first_test_day is not None and moment.date() < self.first_test_day

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing that the version was trained with."""
        return Preprocessing.load(self.folder / Files.PREPROCESSING)

    @cached_property
    def columns_read(self) -> frozenset[str]:
        """Columns that it and its release read, keys included."""
        plan = self.preprocessing.plan
        declared = plan.declared.data
        keys = filter(None, (declared.user, declared.item, *(table.key for table in declared.side_tables)))
        release = self.fetch_release()
        of_release = () if release is None else released_columns(release)
        return frozenset((*plan.read, *plan.read_for_counting, *keys, SLATE_SIZE, *of_release))

    @cached_property
    def reference(self) -> Reference:
        """The reference of its training data.

        Raises:
            ShortlistError: It was registered without a reference, or the reference was changed.
        """
        if self.reference_folder is None:
            raise ShortlistError(
                f"version {self.version} was registered without a reference of its training data, so live traffic has"
                " nothing to be compared with; train again and roll the new version out"
            )
        return Reference.load(self.reference_folder)

    def expected(self, *, of_slates: bool) -> Reference:
        """Return the reference of its live traffic: of its slates, or of candidates that clients send."""
        return self.reference.of_slates(self.model) if of_slates else self.reference

    def expected_quality(self, reports: Sequence[WindowReport], *, of_slates: bool) -> ModelReference | None:
        """Return the quality that is expected of its live traffic, after the windows of `reports`; None: unknown."""
        shown = self.reference.shown.get(self.model)
        if self.quality is None or shown is None or not of_slates:
            return self.quality
        return slates_reference(self.quality, shown, reports, self.version)

    @property
    def quality(self) -> ModelReference | None:
        """Its quality on the test days; None when that could not be measured."""
        return self.reference.models.get(self.model)


class WatchedVersions:
    """The registered versions of a spec, each fetched once."""

    def __init__(self, registry: ModelRegistry, scratch: Path) -> None:
        """Create an empty cache; versions are fetched when they are asked for.

        Args:
            registry: The spec's model registry.
            scratch: Folder for files that have to be fetched from a remote store.
        """
        self._registry = registry
        self._scratch = scratch
        self._fetched: dict[int, WatchedVersion] = {}

    def __getitem__(self, version: int) -> WatchedVersion:
        """Return a version.

        Raises:
            ShortlistError: It was never registered, its files were changed, or MLflow cannot be reached.
        """
        if version not in self._fetched:
            registered = self._registry.fetch(version, self._scratch / f"v{version}")
            reference = self._registry.reference_of(version, self._scratch / f"r{version}")
            fetch_release = partial(self._registry.retrieval_of, version, self._scratch / f"release{version}")
            name = registered.name or registered.kind
            test_days = self._registry.tags_of(version).get("days.test", "")
            first_test_day = date.fromisoformat(test_days.partition("..")[0]) if test_days else None
            self._fetched[version] = WatchedVersion(
                version, name, registered.run_id, registered.folder, reference, fetch_release, first_test_day
            )
        return self._fetched[version]
