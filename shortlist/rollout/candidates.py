"""The version to roll out, with its blessing and its files verified."""

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
    """Return the deployment of a version whose blessing is verified.

    Args:
        models: The registry.
        version: Number of the version.
        store: Folder of the spec's Feast store, or its storage configuration.
        to: Folder for files that are fetched from a remote registry.

    Raises:
        ShortlistError: It is not registered or not blessed, or its files are not those that passed the gates.
    """
    deployment = registered_version(models, version, store, to)
    blessing = models.blessing_of(version, to)
    if blessing is None:
        raise RolloutError(
            f"version {version} of {models.name} is not blessed: it has no {Files.BLESSING} in MLflow."
            " Only a model that passed every gate is rolled out; a training makes and judges a new one."
        )
    verify_blessing(blessing, deployment.model_folder)
    return deployment


def registered_version(
    models: Models, version: int, store: Path | StorageConfig | None, to: Path | None = None
) -> Deployment:
    """Return the deployment of a version that has served before; its blessing is not checked again."""
    registered = models.fetch(version, to)
    release = models.retrieval_of(version, to)
    return Deployment(
        # The model's name, not its kind: several models may have one kind.
        version=version,
        kind=registered.name or registered.kind,
        model_folder=registered.folder,
        digest=folder_digest(registered.folder),
        store=store,
        release=release,
        release_digest="" if release is None else folder_digest(release),
    )


def newest_candidate(models: Models, spec: str) -> int:
    """Return the version that the registry's candidate alias points at.

    Raises:
        RolloutError: There is none.
    """
    version = models.version_of("candidate")
    if version is None:
        raise RolloutError(f"spec '{spec}' has no candidate yet; make run SPEC={spec}")
    return version
