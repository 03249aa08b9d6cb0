"""The version to roll out, with its blessing and its files verified."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shortlist.contracts import Files, ShortlistError
from shortlist.evaluation.blessing import verify_blessing
from shortlist.evaluation.gates.gates import required_gates
from shortlist.rollout.deployment import Deployment
from shortlist.rollout.fleet import Models
from shortlist.rollout.rollouts import RolloutError, Rollouts
from shortlist.storage.artefacts import folder_digest
from shortlist.storage.storage_config import StorageConfig
from shortlist.tracking.registry import UnknownVersionError


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
    verified = verify_blessing(blessing, deployment.model_folder)
    assert verified.blessed is not None
    judged = {gate.name for report in verified.gates if report.model == verified.blessed.model for gate in report.gates}
    unjudged = tuple(name for name in required_gates() if name not in judged)
    return deployment.model_copy(update={"unjudged_gates": unjudged})


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


def retirement_reason(models: Models, version: int) -> str | None:
    """Return why a version was retired, empty when it was not or nobody can say; None where it was deleted."""
    try:
        return models.retirement_of(version)
    except UnknownVersionError:  # deleted from the registry after it served
        return None
    except ShortlistError:
        return ""


def describe_versions(models: Models, rollouts: Rollouts, stable: int) -> Iterator[str]:
    """Yield which version serves and why, and which blessed version waits for its rollout, was rolled back or retired.

    Args:
        models: The registry.
        rollouts: Records of the spec's rollouts.
        stable: The version that serves.
    """
    champion, newest = models.version_of("champion"), models.version_of("candidate")
    reason = (
        "it is the champion: the first blessed version, the newest where that was retired, or the one that was promoted"
        " or returned to last"
    )
    if champion != stable:
        champion_text = "no version is the champion" if champion is None else f"the champion is version {champion}"
        reason = f"the fleet kept it; {champion_text}"
    yield f"Version {stable} serves: {reason}."
    if stable_retirement := retirement_reason(models, stable):
        yield f"Version {stable} was retired: {stable_retirement}; it serves until another version is promoted."
    unfinished, spec = rollouts.unfinished(), rollouts.spec
    if newest is None or newest in {stable, None if unfinished is None else unfinished.state.candidate}:
        return
    rollback_reason, retirement = rollouts.rollback_reason(newest), retirement_reason(models, newest)
    if retirement:
        yield (
            f"Version {newest} was retired: {retirement}; it waits for no rollout. make run SPEC={spec} trains another."
        )
    elif rollback_reason is not None:
        yield f"Version {newest} was rolled back: {rollback_reason}; make deploy-canary SPEC={spec} rolls it out again."
    else:
        yield (
            f"Version {newest} is blessed, for it passed every gate, and waits: make deploy-canary SPEC={spec} rolls it"
            f" out step by step, make promote SPEC={spec} at once."
        )
