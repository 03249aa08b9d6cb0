"""torch comes by the first way that works, and each way is proved."""

from __future__ import annotations

from pathlib import Path

import pytest
from installer.machine import SetupError
from installer.torch_builds import TorchWay, choose_torch_ways, install_torch, torch_ways

WAYS = torch_ways("torch==2.13.0", "python", "uv", Path("lock"))


class Installation:
    """Installs by some of the ways only; of those, some give a torch that computes."""

    def __init__(self, installing: set[str], computing: set[str]) -> None:
        self.installing, self.computing = installing, computing
        self.tried: list[str] = []

    def run(self, title: str, command: tuple[str, ...]) -> bool:
        way = next(way for way in WAYS if (way.title, way.command) == (title, command))
        self.tried.append(way.name)
        return way.name in self.installing

    def prove(self) -> bool:
        return self.tried[-1] in self.computing


def install(installation: Installation, ways: tuple[TorchWay, ...] = WAYS, free_disk_gb: float = 50) -> str:
    return install_torch(ways, installation.run, installation.prove, free_disk_gb).name


def test_the_ways_are_tried_from_the_smallest_download_to_the_largest() -> None:
    installation = Installation(installing={"cuda"}, computing={"cuda"})
    assert install(installation) == "cuda"
    assert installation.tried == ["pip", "uv", "cuda"]


def test_a_build_that_installs_and_does_not_compute_is_not_taken() -> None:
    installation = Installation(installing={"pip", "uv"}, computing={"uv"})
    assert install(installation) == "uv"


def test_without_any_that_works_the_ways_that_were_tried_are_named() -> None:
    with pytest.raises(SetupError, match=r"no torch that works could be installed \(tried: pip, uv, cuda\)"):
        install(Installation(installing={"pip", "cuda"}, computing=set()))


def test_gigabytes_are_not_downloaded_onto_a_disk_that_is_too_small() -> None:
    installation = Installation(installing={"cuda"}, computing={"cuda"})
    with pytest.raises(SetupError, match=r"5\.0 GB of disk are free, torch, .*CUDA build.* need 8\.0 GB"):
        install(installation, free_disk_gb=5)
    assert installation.tried == ["pip", "uv"]


def test_one_way_can_be_chosen_and_a_misspelt_one_is_refused() -> None:
    assert [way.name for way in choose_torch_ways(WAYS, "uv")] == ["uv"]
    assert choose_torch_ways(WAYS, "") == WAYS
    with pytest.raises(SetupError, match="TORCH=cup: unknown way; wanted: pip, uv, cuda"):
        choose_torch_ways(WAYS, "cup")


def test_the_cpu_build_has_the_local_version_and_the_cuda_build_is_hashed() -> None:
    pip, uv, cuda = WAYS
    assert pip.command[-1] == "torch==2.13.0+cpu"
    assert uv.command[-3:] == ("--torch-backend", "cpu", "torch==2.13.0")
    assert "--require-hashes" in cuda.command
