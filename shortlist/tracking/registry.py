"""The registered versions of a spec's model, and their aliases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from shortlist.contracts import Files, ShortlistError
from shortlist.storage.artefacts import verify_manifest
from shortlist.tracking.logged_model import LOGGED_MODEL, MODEL, logged_model_of, model_source
from shortlist.tracking.store_access import create_if_missing, quiet_mlflow

Alias = Literal["champion", "candidate"]

REFERENCE: Final = "reference"
"""Folder of the reference profile, with which live traffic is compared, among a run's files."""
RETRIEVAL: Final = "retrieval"
"""Folder of the releases among a run's files: one folder per digest, for a model can be released again with other
sources, filters or ordering."""
RELEASE: Final = "release"
"""Tag of a version with the digest of its release."""
BEST_CHAMPION: Final = "best_champion"
"""Tag of a version that was registered although an earlier champion is slightly better: the version of that one."""
RETIRED: Final = "retired"
"""Tag of a version that no candidate is compared with any more: the reason that was given."""
RETIRED_AT: Final = "retired_at"
"""Tag of a retired version: when it was retired, ISO 8601."""

_NOT_LINEAGE: Final = (
    "mlflow.runName",
    "mlflow.user",
    "mlflow.parentRunId",
    "mlflow.source.name",
    "mlflow.source.type",
    "shortlist.pipeline",
)


class UnknownVersionError(ShortlistError):
    """There is no registered version with this number."""


class RegisteredModel(BaseModel):
    """A version of a registered model, with its files on this machine and verified."""

    model_config = ConfigDict(frozen=True)

    version: int
    run_id: str
    kind: str
    name: str = ""
    """Name of the model in the spec; empty in versions registered before models had names."""
    folder: Path


class ModelRegistry:
    """The registered model `shortlist-<spec>`.

    Every model of a spec is a version of it, tagged with its name (`model`) and `kind`: a spec has one champion.
    """

    def __init__(self, client: Any, uri: str, spec: str, download: Callable[[str, str | None], str]) -> None:
        self.name = f"shortlist-{spec}"
        self._client = client
        self._uri = uri
        self._download = download

    def register(self, run_id: str, tags: Mapping[str, str] | None = None) -> int:
        """Register the run's model as a version; return its number.

        The run's lineage becomes tags of the version. A run has one version per release (tag `release`): registering it
        again returns the existing one.
        """
        with quiet_mlflow(self._uri):
            versions = self._client.search_model_versions(f"name = '{self.name}' and run_id = '{run_id}'")
            release = (tags or {}).get(RELEASE, "")
            versions_of_release = [
                int(version.version) for version in versions if version.tags.get(RELEASE, "") == release
            ]
            if versions_of_release:
                return max(versions_of_release)
            if not self._client.search_registered_models(f"name = '{self.name}'"):
                create_if_missing(lambda: self._client.create_registered_model(self.name))
            run = self._client.get_run(run_id)
            lineage_tags = {name: value for name, value in run.data.tags.items() if _is_lineage(name)}
            logged = logged_model_of(self._client, run)
            if logged is None:
                version_tags, source = {**lineage_tags, **(tags or {})}, model_source(self._client, run)
                return int(self._client.create_model_version(self.name, source, run_id, tags=version_tags).version)
            version_tags, source = (
                {**lineage_tags, **(tags or {}), LOGGED_MODEL: logged.model_id},
                logged.artifact_location,
            )
            version = self._client.create_model_version(
                self.name, source, run_id, tags=version_tags, model_id=logged.model_id
            )
            return int(version.version)

    def set_alias(self, alias: Alias, version: int | None) -> None:
        """Set an alias to a version, or delete it."""
        if version is None and self.version_of(alias) is None:  # the registered model may not exist
            return
        with quiet_mlflow(self._uri):
            if version is None:
                self._client.delete_registered_model_alias(self.name, alias)
            else:
                self._client.set_registered_model_alias(self.name, alias, str(version))

    def version_of(self, alias: Alias) -> int | None:
        """Return the version number of an alias, or None when it is not set; no file is fetched."""
        with quiet_mlflow(self._uri):
            models = self._client.search_registered_models(f"name = '{self.name}'")
            version = models[0].aliases.get(alias) if models else None
        return None if version is None else int(version)

    def run_of(self, alias: Alias) -> str:
        """Return the MLflow run of an alias's version; empty when the alias is not set."""
        version = self.version_of(alias)
        with quiet_mlflow(self._uri):
            return "" if version is None else str(self._version(version).run_id)

    def tags_of(self, version: int) -> dict[str, str]:
        """Return the tags of a version: its lineage, and those given at its registration.

        Raises:
            UnknownVersionError: There is no such version.
            TrackingError: MLflow cannot be reached.
        """
        with quiet_mlflow(self._uri):
            return dict(self._version(version).tags)

    def tags_by_version(self) -> dict[int, dict[str, str]]:
        """Return the tags of all versions; see `tags_of`.

        Raises:
            TrackingError: MLflow cannot be reached.
        """
        with quiet_mlflow(self._uri):
            versions = self._client.search_model_versions(f"name = '{self.name}'")
        return {int(version.version): dict(version.tags) for version in versions}

    def retire(self, version: int, reason: str, moment: datetime) -> None:
        """Mark a version as retired; it is no longer a candidate."""
        with quiet_mlflow(self._uri):
            for tag, text in ((RETIRED, reason), (RETIRED_AT, moment.isoformat(timespec="seconds"))):
                self._client.set_model_version_tag(self.name, str(version), tag, text)
        if self.version_of("candidate") == version:
            self.set_alias("candidate", None)

    def retirement_of(self, version: int) -> str:
        """Return the reason for which a version was retired; empty when it was not."""
        return self.tags_of(version).get(RETIRED, "")

    def version_to_beat(self) -> int | None:
        """Return the champion that candidates are compared with; None without one, or when it was retired."""
        champion = self.version_of("champion")
        return None if champion is None or self.retirement_of(champion) else champion

    def version_from(self, run_id: str) -> int | None:
        """Return the version number of a run's model, or None when it is not registered."""
        with quiet_mlflow(self._uri):
            versions = self._client.search_model_versions(f"name = '{self.name}' and run_id = '{run_id}'")
        return int(versions[0].version) if versions else None

    def champion(self, to: Path | None = None) -> RegisteredModel | None:
        """Return the champion with its files, or None when there is none; see `find`."""
        return self.find("champion", to)

    def find(self, alias: Alias, to: Path | None = None) -> RegisteredModel | None:
        """Return the version of an alias with its files, or None when the alias is not set.

        Args:
            alias: The alias.
            to: Folder for files that are fetched from a remote store; local ones are used in place.

        Raises:
            IntegrityError: The files are not the ones that were trained.
            TrackingError: MLflow cannot be reached.
        """
        with quiet_mlflow(self._uri):
            models = self._client.search_registered_models(f"name = '{self.name}'")
            if not models or alias not in models[0].aliases:
                return None
            version = self._client.get_model_version_by_alias(self.name, alias)
            return self._fetch_version(version, to)

    def fetch(self, version: int, to: Path | None = None) -> RegisteredModel:
        """Return a version with its files; see `find`.

        Raises:
            UnknownVersionError: There is no such version.
            IntegrityError: The files are not the ones that were trained.
            TrackingError: MLflow cannot be reached.
        """
        with quiet_mlflow(self._uri):
            return self._fetch_version(self._version(version), to)

    def blessing_of(self, version: int, to: Path | None = None) -> Path | None:
        """Return the file with a version's blessing, or None when it has none; it is not verified here.

        Args:
            version: Number of the version.
            to: Folder for a file that is fetched from a remote store; a local one is used in place.

        Raises:
            UnknownVersionError: There is no such version.
            TrackingError: MLflow cannot be reached.
        """
        with quiet_mlflow(self._uri):
            run = self._client.get_run(self._version(version).run_id)
            if all(file.path != Files.BLESSING for file in self._client.list_artifacts(run.info.run_id)):
                return None
            return self._fetch_folder(f"{run.info.artifact_uri}/{Files.BLESSING}", to)

    def reference_of(self, version: int, to: Path | None = None) -> Path | None:
        """Return the folder with a version's reference profile, or None when it has none.

        Args:
            version: Number of the version.
            to: Folder for files that are fetched from a remote store; local ones are used in place.

        Raises:
            UnknownVersionError: There is no such version.
            IntegrityError: The files are not the ones that were logged.
            TrackingError: MLflow cannot be reached.
        """
        return self._fetch_from_run(version, REFERENCE, to)

    def retrieval_of(self, version: int, to: Path | None = None) -> Path | None:
        """Return the folder with a version's release, or None when it has none; see `reference_of`."""
        with quiet_mlflow(self._uri):
            digest = self._version(version).tags.get(RELEASE)
        return None if digest is None else self._fetch_from_run(version, f"{RETRIEVAL}/{digest}", to)

    def _fetch_from_run(self, version: int, name: str, to: Path | None) -> Path | None:
        with quiet_mlflow(self._uri):
            run = self._client.get_run(self._version(version).run_id)
            parent = name.rpartition("/")[0] or None
            if all(file.path != name for file in self._client.list_artifacts(run.info.run_id, parent)):
                return None
            folder = self._fetch_folder(f"{run.info.artifact_uri}/{name}", to)
        verify_manifest(folder)
        return folder

    def _version(self, version: int) -> Any:
        version_by_number = {
            int(version.version): version for version in self._client.search_model_versions(f"name = '{self.name}'")
        }
        if version not in version_by_number:
            registered = ", ".join(str(number) for number in sorted(version_by_number)) or "none"
            raise UnknownVersionError(f"{self.name} has no version {version}; registered: {registered}")
        return version_by_number[version]

    def _fetch_version(self, version: Any, to: Path | None) -> RegisteredModel:
        source = f"{version.source}/{MODEL}" if LOGGED_MODEL in version.tags else version.source
        folder = self._fetch_folder(source, to)
        verify_manifest(folder)
        kind, name = version.tags.get("kind", ""), version.tags.get("model", "")
        return RegisteredModel(version=int(version.version), run_id=version.run_id, kind=kind, name=name, folder=folder)

    def _fetch_folder(self, source: str, to: Path | None) -> Path:
        if to is not None:
            to.mkdir(parents=True, exist_ok=True)
        return Path(self._download(source, None if to is None else str(to)))


def _is_lineage(tag: str) -> bool:
    return tag not in _NOT_LINEAGE and not tag.startswith("gate")
