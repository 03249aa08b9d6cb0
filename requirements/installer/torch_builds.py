"""torch for the CPU, from the first source that works on this machine.

What a package index calls `torch` is a build with gigabytes of CUDA. Builds for the CPU lie elsewhere, and where they
can be had differs from machine to machine, so each source is proved by an import and one operation before it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from installer.machine import SetupError, check_disk

CUDA_DISK_GB = 8.0
"""Free disk that the environments take with the index's build of torch and its libraries."""
CUDA_SIZE = "2.5 GB to download, 4 GB on disk; no CPU build could be had"
PROOF = "import torch; assert float((torch.ones(2, 2) @ torch.ones(2, 2)).sum()) == 8; print(torch.__version__)"

_LOCATION_OPTIONS = {
    "find-links": "--find-links",
    "extra-index-url": "--extra-index-url",
    "trusted-host": "--allow-insecure-host",
}
"""Options of uv by the setting of pip with the same meaning."""


@dataclass(frozen=True)
class TorchSource:
    """One source of a torch that runs on the CPU."""

    name: str
    """What `TORCH=` calls it."""
    title: str
    """What the set-up prints."""
    command: tuple[str, ...]
    """Command that installs it."""
    needed_disk_gb: float = 0.0


def list_torch_sources(
    python: str, uv: str, lock_folder: Path, pip_settings: Mapping[str, str] | None = None
) -> tuple[TorchSource, ...]:
    """Return the sources in the order in which they are tried; the lock files have the hashes of all builds.

    Args:
        python: The environment's Python.
        uv: The environment's uv.
        lock_folder: Folder of the lock files.
        pip_settings: pip's settings, see `read_pip_settings`.
    """
    uv_install = (uv, "pip", "install", "--quiet", "--python", python, "--no-deps")
    # Another index may have a build that the first one lacks; the hashes say which files are meant.
    locations = ["--index-strategy", "unsafe-best-match"]
    for setting, option in _LOCATION_OPTIONS.items():
        for location in (pip_settings or {}).get(setting, "").split():
            locations += [option, location]
    cpu, cuda = (("--require-hashes", "-r", str(lock_folder / f"torch-{build}.txt")) for build in ("cpu", "cuda"))
    return (
        TorchSource("pip", "torch, a CPU build where pip is told to look", (*uv_install, *locations, *cpu)),
        TorchSource("uv", "torch, a CPU build of torch's own index", (*uv_install, "--torch-backend", "cpu", *cpu)),
        TorchSource(
            "cuda", f"torch, the package index's CUDA build ({CUDA_SIZE})", (*uv_install, *cuda), CUDA_DISK_GB
        ),
    )  # fmt: skip


def choose_torch_sources(sources: tuple[TorchSource, ...], chosen_name: str) -> tuple[TorchSource, ...]:
    """Return the sources to try: all, or the one that `TORCH=` names.

    Raises:
        SetupError: There is no such source.
    """
    if not chosen_name:
        return sources
    named = tuple(source for source in sources if source.name == chosen_name)
    if not named:
        raise SetupError(f"TORCH={chosen_name}: unknown source; wanted: {', '.join(source.name for source in sources)}")
    return named


def install_torch(
    sources: tuple[TorchSource, ...],
    run: Callable[[str, tuple[str, ...]], bool],
    prove: Callable[[], bool],
    free_disk_gb: float,
) -> TorchSource:
    """Return the first source that installs a torch which works.

    Args:
        sources: The sources to try, in order.
        run: Runs a command under a title; whether it ended well.
        prove: Whether the installed torch can be imported and computes.
        free_disk_gb: Free disk now, in 10^9 bytes.

    Raises:
        SetupError: None worked, or the only one left needs more disk than is free.
    """
    for source in sources:
        check_disk(free_disk_gb, source.needed_disk_gb, source.title)
        if run(source.title, source.command) and prove():
            return source
    raise SetupError(f"no torch that works could be installed (tried: {', '.join(source.name for source in sources)})")
