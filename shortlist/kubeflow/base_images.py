"""Asks registries what the tags of the images that ours are built upon mean now."""

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
    """An image that ours are built upon."""

    variable: str
    """Build argument with its digest."""
    registry: str
    repository: str
    tag: str

    def __str__(self) -> str:
        return f"{self.registry}/{self.repository}:{self.tag}"


def base_images(folder: Path = FILES) -> list[BaseImage]:
    """Return the images that the Dockerfiles of a folder name, each once.

    Raises:
        ShortlistError: Two Dockerfiles give one variable to different images.
    """
    found: dict[str, BaseImage] = {}
    for file in sorted(folder.glob("*.Dockerfile")):
        for registry, repository, tag, variable in _FROM.findall(file.read_text()):
            image = BaseImage(variable, registry, repository, tag)
            if found.setdefault(variable, image) != image:
                raise ShortlistError(
                    f"{file}: {variable} is the digest of {image} here, and of {found[variable]} elsewhere"
                )
    return list(found.values())


def lock(
    folder: Path = FILES, bases: Path = BASES, *, write: bool = True, url_of: Callable[[str], str] | None = None
) -> list[str]:
    """Write the digests that the tags mean now; return what changed, a line each.

    Args:
        folder: Of the Dockerfiles.
        bases: The file to write: `NAME=digest` lines, whose comments stay.
        write: Whether to write.
        url_of: Gives the address of a registry; HTTPS by default.

    Raises:
        ShortlistError: A registry does not answer, or does not know the tag.
    """
    text, lines = bases.read_text(), []
    for image in base_images(folder):
        digest = digest_of(image, url_of or (lambda registry: f"https://{_SERVER_OF.get(registry, registry)}"))
        line, count = rf"^{image.variable}=(.*)$", len(re.findall(rf"^{image.variable}=", text, re.MULTILINE))
        if count != 1:
            raise ShortlistError(f"{bases}: got {count} lines of {image.variable}=, wanted one")
        before = re.search(line, text, re.MULTILINE)
        same = before is not None and before[1] == digest
        lines.append(f"{'unchanged' if same else 'locked'}: {image} is {digest}")
        text = re.sub(line, f"{image.variable}={digest}", text, flags=re.MULTILINE)
    if write:
        write_text(bases, text)
    return lines


def digest_of(image: BaseImage, url_of: Callable[[str], str]) -> str:
    """Return the digest that a registry has for a tag, as whoever pulls it gets it.

    Raises:
        ShortlistError: It does not answer, or does not know the tag.
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
            f"{image}: its registry answers {answer.status_code} with digest '{digest}'; is there such a tag, and may"
            " everybody read it?"
        )
    return digest


def _token(http: httpx.Client, challenge: str) -> str:
    """Return the token that a registry gives to everybody."""
    said = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = said.pop("realm", "")
    if not realm.startswith(("https://", "http://127.0.0.1")):
        raise ShortlistError(f"a registry wants to be asked for a token at '{realm}'; wanted an address with https")
    answer = http.get(realm, params=said).raise_for_status()
    found = re.search(r'"(?:access_)?token"\s*:\s*"([^"]+)"', answer.text)
    if found is None:
        raise ShortlistError(f"a registry's token address {realm} answers without a token")
    return found[1]
