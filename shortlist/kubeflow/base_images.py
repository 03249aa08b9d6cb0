"""Locks the base images: asks registries for the digests of the tags in the Dockerfiles."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import httpx

from shortlist.contracts import ShortlistError
from shortlist.kubeflow.images import BASES, FILES
from shortlist.storage.artefacts import write_text

_FROM: Final = re.compile(r"^FROM ([^/\s]+)/(\S+?):([^@\s]+)@\$\{(\w+)\}", re.MULTILINE)
_TYPES: Final = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_SERVER_OF: Final = {"docker.io": "registry-1.docker.io"}
_SECONDS: Final = 30.0


class BaseImage(NamedTuple):
    """A base image of a Dockerfile."""

    variable: str
    """Build argument that holds its digest."""
    registry: str
    repository: str
    tag: str

    def __str__(self) -> str:
        return f"{self.registry}/{self.repository}:{self.tag}"


def base_images(folder: Path = FILES) -> list[BaseImage]:
    """Return the base images of a folder's Dockerfiles, each once.

    Raises:
        ShortlistError: Two Dockerfiles use one variable for different images.
    """
    image_by_variable: dict[str, BaseImage] = {}
    for file in sorted(folder.glob("*.Dockerfile")):
        for registry, repository, tag, variable in _FROM.findall(file.read_text()):
            image = BaseImage(variable, registry, repository, tag)
            if image_by_variable.setdefault(variable, image) != image:
                raise ShortlistError(
                    f"{file}: {variable} is the digest of {image} here, and of {image_by_variable[variable]} elsewhere"
                )
    return list(image_by_variable.values())


def lock_base_images(
    folder: Path = FILES, bases: Path = BASES, *, write: bool = True, url_of: Callable[[str], str] | None = None
) -> list[str]:
    """Write the current digest of every base image; return what changed, a line each.

    Args:
        folder: Folder of the Dockerfiles.
        bases: The file to write: `NAME=digest` lines, whose comments stay.
        write: Whether to write the file.
        url_of: Returns the URL of a registry; HTTPS by default.

    Raises:
        ShortlistError: A registry does not answer, or does not know the tag.
    """
    text, lines = bases.read_text(), []
    for image in base_images(folder):
        digest = fetch_digest(image, url_of or (lambda registry: f"https://{_SERVER_OF.get(registry, registry)}"))
        line, count = rf"^{image.variable}=(.*)$", len(re.findall(rf"^{image.variable}=", text, re.MULTILINE))
        if count != 1:
            raise ShortlistError(f"{bases}: got {count} lines of {image.variable}=, wanted one")
        previous_line = re.search(line, text, re.MULTILINE)
        same = previous_line is not None and previous_line[1] == digest
        lines.append(f"{'unchanged' if same else 'locked'}: {image} is {digest}")
        text = re.sub(line, f"{image.variable}={digest}", text, flags=re.MULTILINE)
    if write:
        write_text(bases, text)
    return lines


def fetch_digest(image: BaseImage, url_of: Callable[[str], str]) -> str:
    """Return the digest that a registry gives for a tag, which is that of the index for several platforms.

    Raises:
        ShortlistError: The registry does not answer, or has no such tag.
    """
    url = f"{url_of(image.registry)}/v2/{image.repository}/manifests/{image.tag}"
    headers = {"accept": _TYPES}
    try:
        with httpx.Client(timeout=_SECONDS, follow_redirects=True) as http:
            answer = http.head(url, headers=headers)
            if answer.status_code == 401:
                token = _token(http, answer.headers.get("www-authenticate", ""))
                answer = http.head(url, headers={**headers, "authorization": f"Bearer {token}"})
    except httpx.HTTPError as error:
        raise ShortlistError(f"{image}: its registry does not answer ({type(error).__name__}: {error})") from None
    digest = str(answer.headers.get("docker-content-digest", ""))
    if answer.status_code != 200 or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ShortlistError(
            f"{image}: its registry answers {answer.status_code} with digest '{digest}'; does the tag exist, and is the"
            " repository public?"
        )
    return digest


def _token(http: httpx.Client, challenge: str) -> str:
    """Return the token that a registry gives to anonymous clients."""
    parameters = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = parameters.pop("realm", "")
    if not realm.startswith(("https://", "http://127.0.0.1")):
        raise ShortlistError(f"a registry's token address is '{realm}'; wanted an address with https")
    answer = http.get(realm, params=parameters).raise_for_status()
    token = re.search(r'"(?:access_)?token"\s*:\s*"([^"]+)"', answer.text)
    if token is None:
        raise ShortlistError(f"a registry's token address {realm} answers without a token")
    return token[1]
