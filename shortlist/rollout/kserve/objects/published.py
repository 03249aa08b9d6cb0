"""The files of a version in the object store: published once, immutable, verified without fetching them."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from shortlist.contracts import Files
from shortlist.rollout.deployment import Deployment
from shortlist.rollout.kserve.objects.owner import ObjectOwner
from shortlist.serving.export.fil import write_fil_repository
from shortlist.serving.export.repository import verify_repository, write_repository
from shortlist.serving.export.signature import FOLDER, TREES_FILE
from shortlist.spec.serving import Serving
from shortlist.storage.artefacts import IntegrityError, digest_of_files, folder_digest, verify_manifest
from shortlist.storage.objects import ObjectStore
from shortlist.storage.objects_record import RECORD, read_record
from shortlist.system.kubernetes_api import ForeignError

_VERSION: Final = "version.json"


def model_key(owner: ObjectOwner, version: int, digest: str) -> str:
    """Return the key of a version's model folder."""
    return f"{_key(owner, version, digest)}/model"


def repository_key(owner: ObjectOwner, version: int, digest: str, repository: str) -> str:
    """Return the key of a Triton repository of a version; there may be several, for different serving settings."""
    return f"{_key(owner, version, digest)}/repository-{repository}"


def release_key(owner: ObjectOwner, version: int, digest: str, release: str) -> str:
    """Return the key of the release of a version: sources, filters and ordering."""
    return f"{_key(owner, version, digest)}/release-{release}"


def publish(objects: ObjectStore, owner: ObjectOwner, deployment: Deployment, serving: Serving) -> str:
    """Publish the model folder, release and Triton repository of a version; return the digest of the repository.

    The repository uses backends that need no Python in the server's image: ONNX Runtime, or FIL for trees on a GPU.

    Raises:
        IntegrityError: The model folder or the release was changed, or other files are published already.
        ForeignError: Another cluster published this version there.
        ShortlistError: The store is unavailable or refuses.
    """
    _verify(deployment.model_folder, deployment.digest)
    if deployment.release is not None:
        _verify(deployment.release, deployment.release_digest)
    version, model = deployment.version, deployment.digest
    with TemporaryDirectory(prefix="shortlist-") as scratch:
        repository = Path(scratch) / "repository"
        exported, placement = deployment.model_folder / FOLDER, serving.placement
        if placement.device == "gpu" and (deployment.model_folder / TREES_FILE).is_file():
            write_fil_repository(exported, version, serving.batching, repository, placement)
        else:
            write_repository(exported, version, serving.batching, repository, "onnxruntime", placement=placement)
        verify_repository(repository)
        digest = folder_digest(repository)
        _claim(objects, owner, _key(owner, version, model), {"model": model, "kind": deployment.kind})
        objects.put_folder(deployment.model_folder, model_key(owner, version, model))
        if deployment.release is not None:
            objects.put_folder(deployment.release, release_key(owner, version, model, deployment.release_digest))
        objects.put_folder(repository, repository_key(owner, version, model, digest))
    return digest


def verify_published(objects: ObjectStore, key: str, digest: str) -> None:
    """Check that a published folder is complete and has the digest, by its record and the names of its files.

    The content of the files is verified by the pods that fetch them, before they serve.

    Raises:
        IntegrityError: The folder is incomplete or was changed.
    """
    url = objects.url(key)
    content = objects.read(f"{key}/{RECORD}")
    if content is None:
        raise IntegrityError(f"{url}: nothing whole is there any more; the next rollout publishes it again")
    files = read_record(content, url)
    named = {name: sha for name, sha in files.items() if Path(name).name != Files.MANIFEST}
    if (present_digest := digest_of_files(named)) != digest:
        raise IntegrityError(f"{url}: digest {present_digest}, but {digest} was deployed; somebody replaced it")
    present = {name.removeprefix(f"{key}/") for name in objects.keys(f"{key}/")} - {RECORD}
    if unexpected_names := sorted(present ^ set(files)):
        raise IntegrityError(f"{url}: '{unexpected_names[0]}' is missing or was added; published folders never change")


def _verify(folder: Path, digest: str) -> None:
    verify_manifest(folder)
    if (present_digest := folder_digest(folder)) != digest:
        raise IntegrityError(f"{folder}: digest {present_digest}, but {digest} was blessed; train again")


def _claim(objects: ObjectStore, owner: ObjectOwner, key: str, contents: dict[str, Any]) -> None:
    """Write the owner of a version, or check it: two clusters that share a prefix are detected here."""
    name = f"{key}/{_VERSION}"
    claim = {"cluster": owner.cluster, "spec": owner.spec, **contents}
    if objects.create(name, json.dumps(claim, sort_keys=True).encode()):
        return
    existing_claim = json.loads(objects.read(name) or b"{}")
    if existing_claim.get("cluster") != owner.cluster:
        raise ForeignError(
            f"{objects.url(key)}: was published by cluster '{existing_claim.get('cluster')}', and this is cluster"
            f" '{owner.cluster}'. Give each cluster a prefix of its own in runtime.objects.url."
        )
    if existing_claim != claim:
        raise IntegrityError(f"{objects.url(key)}: holds another model; published versions never change")


def _key(owner: ObjectOwner, version: int, digest: str) -> str:
    return f"versions/{owner.spec}/v{version}-{digest}"
