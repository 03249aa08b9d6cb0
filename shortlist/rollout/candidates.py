"""Which version is rolled out, and whether it may be."""

from __future__ import annotations

from pathlib import Path

from shortlist.contracts import Files
from shortlist.evaluation.blessing import verify_blessing
from shortlist.rollout.deployment import Deployment
from shortlist.rollout.fleet import Models
from shortlist.rollout.rollouts import RolloutError
from shortlist.storage.artefacts import folder_digest
from shortlist.storage.storage_config import StorageConfig


def blessed_version(
    models: Models, version: int, store: Path | StorageConfig | None, to: Path | None = None
) -> Deployment:
    """Return a version ready to be deployed, after making sure that it may be.

    Args:
        models: The registry.
        version: Its number.
        store: Folder of the spec's Feast store, or the stores it is in.
        to: Folder for files that have to be fetched from a remote registry.

    Raises:
        ShortlistError: It was never registered, nobody blessed it, or its files are not those that were judged.
    """
    deployment = registered_version(models, version, store, to)
    blessing = models.blessing_of(version, to)
    if blessing is None:
        raise RolloutError(
            f"version {version} of {models.name} is not blessed: it has no {Files.BLESSING} in MLflow."
            " Only a model that passed every gate is rolled out; make run trains and judges a new one."
        )
    verify_blessing(blessing, deployment.model_folder)
    return deployment


def registered_version(
    models: Models, version: int, store: Path | StorageConfig | None, to: Path | None = None
) -> Deployment:
    """Return a version ready to be deployed that has served before; its files are checked, not its blessing."""
    found = models.fetch(version, to)
    release = models.retrieval_of(version, to)
    return Deployment(
        # Its name says more than its kind: there may be several of one kind.
        version=version,
        kind=found.name or found.kind,
        model_folder=found.folder,
        digest=folder_digest(found.folder),
        store=store,
        release=release,
        release_digest="" if release is None else folder_digest(release),
    )


def newest_candidate(models: Models, spec: str) -> int:
    """Return the version that the registry calls candidate.

    Raises:
        RolloutError: There is none.
    """
    version = models.version_of("candidate")
    if version is None:
        raise RolloutError(f"spec '{spec}' has no candidate yet; make run SPEC={spec}")
    return version
