"""torch comes from the first source that works, and each source is proved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from installer.machine import SetupError
from installer.torch_builds import (
    TorchSource,
    choose_torch_sources,
    install_torch,
    list_torch_sources,
)

ROOT = Path(__file__).parents[3]
SOURCES = list_torch_sources("python", "uv", ROOT / "requirements/lock")


class Installation:
    """Installs by some of the sources only; of those, some give a torch that computes."""

    def __init__(self, installing: set[str], computing: set[str]) -> None:
        self.installing, self.computing = installing, computing
        self.attempts: list[str] = []

    def run(self, title: str, command: tuple[str, ...]) -> bool:
        source = next(source for source in SOURCES if (source.title, source.command) == (title, command))
        self.attempts.append(source.name)
        return source.name in self.installing

    def prove(self) -> bool:
        return self.attempts[-1] in self.computing


def install(installation: Installation, sources: tuple[TorchSource, ...] = SOURCES, free_disk_gb: float = 50) -> str:
    return install_torch(sources, installation.run, installation.prove, free_disk_gb).name


def test_the_sources_are_tried_from_the_smallest_download_to_the_largest() -> None:
    installation = Installation(installing={"cuda"}, computing={"cuda"})
    assert install(installation) == "cuda"
    assert installation.attempts == ["pip", "uv", "cuda"]


def test_a_build_that_installs_and_does_not_compute_is_rejected() -> None:
    installation = Installation(installing={"pip", "uv"}, computing={"uv"})
    assert install(installation) == "uv"


def test_without_any_that_works_the_sources_that_were_tried_are_named() -> None:
    with pytest.raises(SetupError, match=r"no torch that works could be installed \(tried: pip, uv, cuda\)"):
        install(Installation(installing={"pip", "cuda"}, computing=set()))


def test_gigabytes_are_not_downloaded_onto_a_disk_that_is_too_small() -> None:
    installation = Installation(installing={"cuda"}, computing={"cuda"})
    with pytest.raises(SetupError, match=r"5\.0 GB of disk are free, torch, .*CUDA build.* need 8\.0 GB"):
        install(installation, free_disk_gb=5)
    assert installation.attempts == ["pip", "uv"]


def test_one_source_can_be_chosen_and_a_misspelt_one_is_refused() -> None:
    assert [source.name for source in choose_torch_sources(SOURCES, "uv")] == ["uv"]
    assert choose_torch_sources(SOURCES, "") == SOURCES
    with pytest.raises(SetupError, match="TORCH=cup: unknown source; wanted: pip, uv, cuda"):
        choose_torch_sources(SOURCES, "cup")


def test_every_build_has_the_pinned_version_and_is_taken_by_its_hash_alone() -> None:
    pinned = re.findall(r"^torch==\S+", (ROOT / "requirements/run.txt").read_text(), re.MULTILINE)
    for source, suffix in zip(SOURCES, ("+cpu", "+cpu", ""), strict=True):
        assert source.command[-3:-1] == ("--require-hashes", "-r")
        lock = Path(source.command[-1]).read_text()
        assert re.findall(r"^torch==\S+", lock, re.MULTILINE) == [pinned[0] + suffix]
        assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", lock)) >= 3  # of Python 3.11, 3.12 and 3.13


def test_only_the_first_source_reads_pips_configured_index() -> None:
    settings = {"find-links": "/wheels /more", "extra-index-url": "https://a.example/simple", "cert": "/ca.pem"}
    first, *others = list_torch_sources("python", "uv", ROOT / "requirements/lock", settings)
    options = first.command[first.command.index("--index-strategy") + 2 : first.command.index("--require-hashes")]
    assert options == (
        *("--find-links", "/wheels", "--find-links", "/more", "--extra-index-url", "https://a.example/simple"),
    )
    assert not any("--find-links" in source.command for source in others)
