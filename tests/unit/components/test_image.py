"""Images of the steps, and that their references cannot change their meaning."""

from __future__ import annotations

import pytest

from components.image import PIPELINE_IMAGE, resolve_images
from shortlist.contracts import ShortlistError
from shortlist.spec.cluster import Images

DIGEST = "sha256:" + "0123456789abcdef" * 4
PIPELINE = f"registry.example:5000/team/shortlist-pipeline@{DIGEST}"


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SHORTLIST_IMAGE", "SHORTLIST_GPU_IMAGE", "SHORTLIST_TRITON_IMAGE"):
        monkeypatch.delenv(variable, raising=False)


def test_the_spec_overrides_the_environment_which_overrides_the_compiled_in_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert resolve_images(Images(), allow_tags=True).pipeline == PIPELINE_IMAGE
    monkeypatch.setenv("SHORTLIST_IMAGE", f"environment@{DIGEST}")
    assert resolve_images(Images()).pipeline == f"environment@{DIGEST}"
    assert resolve_images(Images(pipeline=PIPELINE)).pipeline == PIPELINE


def test_an_image_without_digest_is_refused_in_production() -> None:
    with pytest.raises(
        ShortlistError, match=r"images\.pipeline: 'team/shortlist:1\.2' has no digest, so the image can change"
    ):
        resolve_images(Images(pipeline="team/shortlist:1.2"))
    with pytest.raises(ShortlistError, match=r"images\.triton: .* has no digest"):
        resolve_images(Images(pipeline=PIPELINE, triton="nvcr.io/nvidia/tritonserver:26.10-py3"))


def test_the_compiled_in_image_with_a_tag_is_refused() -> None:
    with pytest.raises(ShortlistError, match=r"images\.pipeline: .*has no digest"):
        resolve_images(Images())


def test_tags_are_allowed_by_the_spec_unless_the_caller_forbids_tags() -> None:
    images = Images(pipeline="team/shortlist:1.2", allow_tags=True)
    assert resolve_images(images).pipeline == "team/shortlist:1.2"
    with pytest.raises(ShortlistError, match="has no digest"):
        resolve_images(images, allow_tags=False)


@pytest.mark.parametrize("broken", ["a b", "name@sha256:abc", "team/UPPER:1", "name@md5:" + "0" * 64, "http://x/y"])
def test_what_is_no_reference_is_refused(broken: str) -> None:
    with pytest.raises(ShortlistError, match="is no image reference"):
        resolve_images(Images(pipeline=broken), allow_tags=True)


def test_an_image_that_is_needed_must_be_named() -> None:
    references = resolve_images(Images(pipeline=PIPELINE))
    assert references.require("pipeline") == PIPELINE
    with pytest.raises(ShortlistError, match=r"images\.gpu: .*none is configured.*SHORTLIST_GPU_IMAGE"):
        references.require("gpu")
