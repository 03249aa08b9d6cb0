"""The files and the processes of one deployed version."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from shortlist.artefacts import IntegrityError, folder_digest, sha256, verify_manifest, write_json, written_whole
from shortlist.config.serving import Serving
from shortlist.serving.export import signature
from shortlist.serving.online.settings import ServerSettings
from shortlist.serving.places import Places
from shortlist.serving.stack.deployment import Deployment
from shortlist.serving.stack.launch import check_repository
from shortlist.serving.stack.ports import HOST
from shortlist.serving.stack.program import Program
from shortlist.serving.stack.record import DeployedVersion, StackRecord, VersionPorts
from shortlist.serving.stack.triton import TritonPorts, triton_program


def install(
    places: Places, record: StackRecord, deployment: Deployment, serving: Serving, ports: VersionPorts
) -> DeployedVersion:
    """Write the folder of a version (its model folder, its Triton repository, its server's settings) and return it.

    A folder that holds this version already, unchanged, is kept.

    Raises:
        IntegrityError: The model folder is not what it was when it was verified.
    """
    folder = places.versions / f"v{deployment.version}"
    known = record.versions.get(deployment.version)
    if known is None or not _holds(folder, known):
        _verify(deployment.model_folder, deployment.digest)
        with written_whole(folder) as staging:
            _write(staging, deployment, serving)
    return DeployedVersion(
        deployment=deployment, serving=serving, ports=ports, repository_digest=folder_digest(folder / "repository")
    )


def version_programs(
    places: Places, record: StackRecord, version: int, deployed: DeployedVersion
) -> dict[str, Program]:
    """Return the two programs of a version; its server's settings are written."""
    folder = places.versions / f"v{version}"
    settings = folder / "server.json"
    write_json(settings, _settings(places, record, version, deployed).model_dump(mode="json"))
    ports = deployed.ports
    return {
        f"triton-v{version}": triton_program(
            f"triton-v{version}",
            folder / "repository",
            deployed.repository_digest,
            TritonPorts(ports.triton_http, ports.triton_grpc, ports.triton_metrics),
            shared_memory_of(places, version),
        ),
        f"server-v{version}": Program(
            name=f"server-v{version}",
            command=(*record.server, str(settings)),
            # Other settings make another program.
            environment={"SHORTLIST_CONFIGURATION": sha256(settings), "PYTHONUNBUFFERED": "1"},
        ),
    }


def shared_memory_of(places: Places, version: int | None = None) -> str:
    """Return the prefix of the shared-memory regions of a version, or of all of a stack's, and of nobody else's."""
    stack = hashlib.sha256(str(places.root).encode()).hexdigest()[:10]
    return f"shortlist-{stack}-" if version is None else f"shortlist-{stack}-v{version}-"


def _settings(places: Places, record: StackRecord, version: int, deployed: DeployedVersion) -> ServerSettings:
    return ServerSettings(
        model=record.model,
        version=version,
        model_folder=places.versions / f"v{version}" / "model",
        predictor=f"{HOST}:{deployed.ports.triton_http}",
        http_port=deployed.ports.http,
        grpc_port=deployed.ports.grpc,
        store=deployed.deployment.store,
        project=record.project,
        online_store=record.online_store,
        predictions=places.predictions,
        serving=deployed.serving,
    )


def _write(folder: Path, deployment: Deployment, serving: Serving) -> None:
    from shortlist.serving.export.repository import verify_repository, write_repository

    model = folder / "model"
    shutil.copytree(deployment.model_folder, model)
    _verify(model, deployment.digest)  # It may have changed while it was copied.
    repository = folder / "repository"
    exported, version = model / signature.FOLDER, deployment.version
    write_repository(
        exported, version, serving.batching, repository, scoring=serving.scoring, placement=serving.placement
    )
    verify_repository(repository)


def _verify(folder: Path, digest: str) -> None:
    if not folder.is_dir():
        raise IntegrityError(f"{folder}: no such model folder; train again")
    verify_manifest(folder)
    if (got := folder_digest(folder)) != digest:
        raise IntegrityError(f"{folder}: digest {got}, but {digest} was blessed; train again")


def _holds(folder: Path, known: DeployedVersion) -> bool:
    try:
        check_repository(folder / "repository", known.repository_digest)
        _verify(folder / "model", known.deployment.digest)
    except IntegrityError:
        return False
    return True
