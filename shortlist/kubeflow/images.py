"""Builds the container images with docker, podman or buildah."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from components.image import VARIABLES
from shortlist.contracts import ShortlistError
from shortlist.system.project import project_root
from shortlist.tracking.lineage import code_version, git_commit

ROOT: Final = project_root()
FILES: Final = ROOT / "deploy/docker"
BASES: Final = FILES / "bases.env"
BUILDERS: Final = ("docker", "podman", "buildah")
_BASE_OF: Final = {"pipeline": "PYTHON_DIGEST", "gpu": "PYTHON_DIGEST", "triton": "TRITON_DIGEST"}
_DIGEST: Final = r"sha256:[0-9a-f]{64}"
_SECONDS: Final = 30


class BuiltImage(NamedTuple):
    """An image that was built."""

    reference: str
    """By digest after a push, else by tag."""
    size: str
    """Size of its layers here, for people; empty where the builder does not say it."""


def build_images(kinds: Sequence[str], registry: str = "", torch_index: str = "") -> dict[str, BuiltImage]:
    """Build images, and push them when a registry is named; return them by kind.

    Args:
        kinds: Some of `pipeline`, `gpu`, `triton`.
        registry: `host/path` to push to; empty: the images stay here, and have no digest yet.
        torch_index: Package index with the build of torch for CPUs; empty: torch's own.

    Raises:
        ShortlistError: There is no builder, a base image has no digest, or a build fails.
    """
    builder = find_builder()
    digests = base_digests(kinds)
    return {kind: _build(builder, kind, digests[_BASE_OF[kind]], registry, torch_index) for kind in kinds}


def plan_build(kinds: Sequence[str], registry: str = "") -> list[str]:
    """Return what `build_images` would do, a line each, and what is missing; needs no builder.

    Args:
        kinds: Some of `pipeline`, `gpu`, `triton`.
        registry: `host/path` to push to; empty: nothing is pushed.
    """
    digest_by_variable, lines = _known_digests(), []
    for kind in kinds:
        name = _BASE_OF[kind]
        missing = (
            ""
            if re.fullmatch(_DIGEST, digest_by_variable[name])
            else f"; {name} is not known: .venv/bin/shortlist lock-images asks for it"
        )
        tag = _tag(kind, registry)
        lines.append(f"would build {tag} from {_file(kind).relative_to(ROOT)}{missing}")
        if registry:
            lines.append(f"would push {tag}")
    try:
        lines.append(f"with {find_builder()}")
    except ShortlistError as error:
        lines.append(str(error))
    return lines


def base_digests(kinds: Sequence[str]) -> Mapping[str, str]:
    """Return the digests of the base images: from the environment, else from `bases.env`.

    Raises:
        ShortlistError: A digest that is needed is missing or malformed.
    """
    digest_by_variable = _known_digests()
    for kind in kinds:
        name = _BASE_OF[kind]
        if not re.fullmatch(_DIGEST, digest_by_variable[name]):
            raise ShortlistError(
                f"{name}: got '{digest_by_variable[name]}', wanted sha256:<64 hex digits>, the base image of '{kind}';"
                f" .venv/bin/shortlist lock-images writes it into {BASES.relative_to(ROOT)}"
            )
    return digest_by_variable


def find_builder() -> str:
    """Return the path of the first builder that works here.

    Raises:
        ShortlistError: No builder is installed, or none works.
    """
    problems = []
    for name in BUILDERS:
        program = shutil.which(name)
        if program is None:
            problems.append(f"{name}: not installed")
            continue
        completed = _run([program, "info"], timeout=_SECONDS)
        if completed.returncode == 0:
            return program
        problems.append(f"{name}: {' '.join(completed.stderr.split())[-200:] or 'does not work'}")
    raise ShortlistError(
        f"images: no builder of container images works here ({'; '.join(problems)}). Install one of them, or build"
        " deploy/docker/*.Dockerfile elsewhere, e.g. in your CI."
    )


def _build(builder: str, kind: str, base: str, registry: str, torch_index: str) -> BuiltImage:
    tag = _tag(kind, registry)
    arguments = {_BASE_OF[kind]: base, "CODE_VERSION": code_version(), "REVISION": git_commit() or ""}
    if kind == "pipeline":
        arguments |= {"TORCH_INDEX": torch_index} if torch_index else {}
    options = [part for key, value in arguments.items() for part in ("--build-arg", f"{key}={value}")]
    if _is_buildah(builder):
        options.append("--layers")  # the others keep the layers of a build by themselves
    _run_checked([builder, "build", "--file", str(_file(kind)), "--tag", tag, *options, str(ROOT)], f"building {tag}")
    size = _size(builder, tag)
    if not registry:
        return BuiltImage(tag, size)
    return BuiltImage(f"{tag.rpartition(':')[0]}@{_push(builder, tag)}", size)


def _is_buildah(builder: str) -> bool:
    return Path(builder).name == "buildah"


def _size(builder: str, tag: str) -> str:
    """Return the size of an image for people; empty where the builder does not say it."""
    command = ["images", "--format", "{{.Size}}", tag]
    completed = _run([builder, *command], timeout=_SECONDS)
    return completed.stdout.strip() if completed.returncode == 0 else ""


def _tag(kind: str, registry: str) -> str:
    name = f"{registry.rstrip('/')}/shortlist-{kind}" if registry else f"shortlist-{kind}"
    return f"{name}:{code_version()}"


def _file(kind: str) -> Path:
    return FILES / f"{kind}.Dockerfile"


def _known_digests() -> dict[str, str]:
    written = dict(re.findall(r"^(\w+)=(\S*)$", BASES.read_text(), re.MULTILINE))
    return {name: os.environ.get(name) or written.get(name, "") for name in set(_BASE_OF.values())}


def _push(builder: str, tag: str) -> str:
    """Push an image and return its digest."""
    if Path(builder).name == "docker":
        output = _run_checked([builder, "push", tag], f"pushing {tag}")
        digest = re.search(r"digest: (sha256:[0-9a-f]{64})", output)
    else:
        with TemporaryDirectory(prefix="shortlist-push-") as folder:
            file = Path(folder) / "digest"
            _run_checked([builder, "push", "--digestfile", str(file), tag], f"pushing {tag}")
            digest = re.search(r"(sha256:[0-9a-f]{64})", file.read_text())
    if digest is None:
        raise ShortlistError(f"images: {tag} was pushed, but the registry returned no digest; ask it for one")
    return digest[1]


def digest_lines(images: Mapping[str, BuiltImage]) -> str:
    """Return a line with the size of each image, and the references as a spec's section and environment variables."""
    references = {kind: image.reference for kind, image in images.items()}
    sizes = "".join(f"{image.reference}: {image.size}\n" for image in images.values() if image.size)
    section = json.dumps(dict(references), separators=(", ", ": "))
    variables = "\n".join(f"export {VARIABLES[kind]}={reference}" for kind, reference in references.items())
    return f"{sizes}runtime.cluster.images: {section}\n{variables}"


def _run_checked(command: list[str], doing: str) -> str:
    completed = _run(command, timeout=None)
    if completed.returncode != 0:
        raise ShortlistError(
            f"images: {doing} failed: {' '.join((completed.stderr or completed.stdout).split())[-1_000:]}"
        )
    return completed.stdout + completed.stderr


def _run(command: list[str], timeout: float | None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - a builder found on the PATH, and our own arguments
            command, check=False, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no answer within {timeout:.0f} s")
