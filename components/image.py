"""The container images that the steps run in on a cluster."""

import os
import re
from typing import Final

from pydantic import BaseModel, ConfigDict

from shortlist.contracts import ShortlistError
from shortlist.spec.cluster import Images

PIPELINE_IMAGE = os.environ.get("SHORTLIST_IMAGE", "shortlist/python-pipeline:0.1.0")
"""Image with this package installed; kfp.local ignores it and uses the running Python."""

VARIABLES: Final = {"pipeline": "SHORTLIST_IMAGE", "gpu": "SHORTLIST_GPU_IMAGE", "triton": "SHORTLIST_TRITON_IMAGE"}
"""Environment variables that name an image where the spec does not."""

_NAME: Final = r"[a-z0-9]+([._-]+[a-z0-9]+)*"
_REFERENCE: Final = re.compile(
    rf"(?P<registry>[A-Za-z0-9.-]+(:\d+)?/)?{_NAME}(/{_NAME})*(:(?P<tag>\w[\w.-]{{0,127}}))?(@(?P<digest>\S+))?"
)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_REFERENCE_FORM: Final = "registry/name@sha256:<64 hex digits>"


class ImageReferences(BaseModel):
    """Image reference of each kind of container; empty where none is configured."""

    model_config = ConfigDict(frozen=True)

    pipeline: str
    gpu: str
    triton: str

    def require(self, kind: str) -> str:
        """Return the reference of an image.

        Args:
            kind: `pipeline`, `gpu` or `triton`.

        Raises:
            ShortlistError: None is configured.
        """
        reference: str = getattr(self, kind)
        if not reference:
            raise ShortlistError(
                f"runtime.cluster.images.{kind}: this spec needs that image and none is configured. Build it (make"
                f" images), then write it into the spec or into {VARIABLES[kind]}, by digest."
            )
        return reference


def resolve_images(images: Images, allow_tags: bool | None = None) -> ImageReferences:
    """Return the images to use: the spec's, else the environment's, else, for `pipeline`, the one compiled in.

    Args:
        images: The spec's section.
        allow_tags: Whether a tag is enough; None: as in the section.

    Raises:
        ShortlistError: A value is no image reference, or has no digest while tags are not allowed.
    """
    reference_by_kind = {kind: getattr(images, kind) or os.environ.get(VARIABLES[kind], "") for kind in VARIABLES}
    reference_by_kind["pipeline"] = reference_by_kind["pipeline"] or PIPELINE_IMAGE
    tags = images.allow_tags if allow_tags is None else allow_tags
    for kind, reference in reference_by_kind.items():
        if reference:
            _check_reference(f"runtime.cluster.images.{kind}", reference, tags)
    return ImageReferences(**reference_by_kind)


def _check_reference(key: str, reference: str, tags: bool) -> None:
    parts = _REFERENCE.fullmatch(reference)
    if parts is None or (parts["digest"] is not None and not _DIGEST.fullmatch(parts["digest"])):
        raise ShortlistError(f"{key}: '{reference}' is no image reference; wanted {_REFERENCE_FORM}")
    if parts["digest"] is None and not tags:
        raise ShortlistError(
            f"{key}: '{reference}' has no digest, so the image can change under a running version; wanted"
            f" {_REFERENCE_FORM}, as `make images` prints it after a push. For experiments:"
            " runtime.cluster.images.allow_tags: true."
        )
