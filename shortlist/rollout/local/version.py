"""The files and programs of one deployed version."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Final

from shortlist.rollout.deployment import Deployment
from shortlist.rollout.local.record import DeployedVersion, StackRecord, VersionPorts, server_name, triton_name
from shortlist.serving.export import signature
from shortlist.serving.paths import ServingPaths
from shortlist.serving.processes.launch import check_repository
from shortlist.serving.processes.program import Program
from shortlist.serving.server.runtime.settings import SERVER_ENVIRONMENT, ServerSettings
from shortlist.serving.triton.triton import TritonSocket, triton_program
from shortlist.spec.serving import MAX_REPLICAS, Serving
from shortlist.storage.artefacts import (
    IntegrityError,
    atomic_folder,
    folder_digest,
    sha256,
    verify_manifest,
    write_json,
)

RELEASE: Final = "release"
"""Folder of the release (sources, filters, ordering) inside a version's folder."""


def install(
    paths: ServingPaths,
    record: StackRecord,
    deployment: Deployment,
    serving: Serving,
    replicas: tuple[VersionPorts, ...],
) -> DeployedVersion:
    """Write the folder of a version (model folder, release, Triton repository) and return the deployed version.

    An unchanged folder of this version is kept.

    Raises:
        IntegrityError: The model folder was changed since it was verified.
    """
    folder = paths.versions / f"v{deployment.version}"
    deployed_before = record.versions.get(deployment.version)
    if deployed_before is None or not _holds(folder, deployed_before):
        _verify(deployment.model_folder, deployment.digest)
        if deployment.release is not None:
            _verify(deployment.release, deployment.release_digest)
        with atomic_folder(folder) as staging:
            _write(staging, deployment, serving)
    return DeployedVersion(
        deployment=deployment,
        serving=serving,
        replicas=replicas,
        repository_digest=folder_digest(folder / "repository"),
    )


def version_programs(
    paths: ServingPaths, record: StackRecord, version: int, deployed: DeployedVersion
) -> dict[str, Program]:
    """Write the settings of a version's servers and return its programs: a Triton and a server per replica."""
    programs_by_name = {}
    for replica in range(len(deployed.replicas)):
        for program in (
            _triton(paths, record, version, deployed, replica),
            _server(paths, record, version, deployed, replica),
        ):
            programs_by_name[program.name] = program
    return programs_by_name


def _triton(paths: ServingPaths, record: StackRecord, version: int, deployed: DeployedVersion, replica: int) -> Program:
    name = triton_name(version, replica)
    return triton_program(
        name,
        paths.versions / f"v{version}" / "repository",
        deployed.repository_digest,
        TritonSocket(record.triton_socket(version, replica), deployed.replicas[replica].triton_metrics),
        shared_memory_of(paths, version, replica),
    )


def _server(paths: ServingPaths, record: StackRecord, version: int, deployed: DeployedVersion, replica: int) -> Program:
    name = server_name(version, replica)
    settings = paths.versions / f"v{version}" / (f"server-{replica + 1}.json" if replica else "server.json")
    write_json(settings, _settings(paths, record, version, deployed, replica).model_dump(mode="json"))
    return Program(
        name=name,
        command=(*record.server, str(settings)),
        environment={
            # Changed settings change the program, so it is restarted.
            "SHORTLIST_CONFIGURATION": sha256(settings),
            **SERVER_ENVIRONMENT,
        },
    )


def shared_memory_of(paths: ServingPaths, version: int | None = None, replica: int | None = None) -> str:
    """Return the unique prefix of the shared-memory regions of a replica, a version, or a stack."""
    stack = hashlib.sha256(str(paths.root).encode()).hexdigest()[:10]
    of_version = "" if version is None else f"v{version}-"
    return f"shortlist-{stack}-{of_version}" + ("" if replica is None else f"{replica + 1}-")


def _settings(
    paths: ServingPaths, record: StackRecord, version: int, deployed: DeployedVersion, replica: int
) -> ServerSettings:
    # All possible replicas: a changed number of them must not restart the running ones.
    tritons = [f"unix:{record.triton_socket(version, number)}" for number in range(MAX_REPLICAS)]
    ports = deployed.replicas[replica]
    return ServerSettings(
        model=record.model,
        version=version,
        model_folder=paths.versions / f"v{version}" / "model",
        release=paths.versions / f"v{version}" / RELEASE if deployed.deployment.release is not None else None,
        predictor=tritons.pop(replica),
        spare_predictors=tuple(tritons),
        http_port=ports.http,
        grpc_port=ports.grpc,
        health_port=ports.health,
        store=deployed.deployment.store,
        project=record.model,
        online_store=record.online_store,
        predictions=paths.predictions,
        serving=deployed.serving,
        secrets=paths.secrets,
    )


def _write(folder: Path, deployment: Deployment, serving: Serving) -> None:
    from shortlist.serving.export.repository import verify_repository, write_repository

    model = folder / "model"
    shutil.copytree(deployment.model_folder, model)
    _verify(model, deployment.digest)  # It may have changed while it was copied.
    if deployment.release is not None:
        shutil.copytree(deployment.release, folder / RELEASE)
        _verify(folder / RELEASE, deployment.release_digest)
    repository = folder / "repository"
    exported, version = model / signature.FOLDER, deployment.version
    write_repository(
        exported, version, serving.batching, repository, scoring=serving.scoring, placement=serving.placement
    )
    verify_repository(repository)


def verify_deployed(folder: Path, deployment: Deployment) -> None:
    """Check that the folder of a version holds the model and the release that were deployed.

    Raises:
        IntegrityError: A file was changed.
    """
    _verify(folder / "model", deployment.digest)
    if deployment.release is not None:
        _verify(folder / RELEASE, deployment.release_digest)


def _verify(folder: Path, digest: str) -> None:
    if not folder.is_dir():
        raise IntegrityError(f"{folder}: no such folder; train again")
    verify_manifest(folder)
    if (present_digest := folder_digest(folder)) != digest:
        raise IntegrityError(f"{folder}: digest {present_digest}, but {digest} was blessed; train again")


def _holds(folder: Path, deployed_before: DeployedVersion) -> bool:
    try:
        check_repository(folder / "repository", deployed_before.repository_digest)
        verify_deployed(folder, deployed_before.deployment)
    except IntegrityError:
        return False
    return True
