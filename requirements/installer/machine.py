"""What kind of machine this is, and what it lacks: found out before anything is downloaded."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from installer.pythons import MAIN_VERSIONS, TRITON_VERSIONS, PythonBuild, version_text

MIN_GLIBC = (2, 35)
"""Oldest glibc that the wheel of Triton Inference Server (nvidia-pytriton 0.7.0) runs on."""
CPU_DISK_GB = 3.5
"""Free disk that both environments take with a CPU build of torch, and what is unpacked on the way."""
MIN_NVIDIA_DRIVER = 580
"""Oldest NVIDIA driver that runs CUDA 13."""
GPU_VERSION = (3, 11)
"""Version of Python that requirements/gpu.txt is resolved for."""
GPU_DISK_GB = 12.0
"""Free disk that cuDF, and torch and XGBoost for CUDA 13 take, and their downloads."""
CONTAINER = "next, in a container: make container"


class SetupError(Exception):
    """Something that a user must mend before the set-up can go on; its text is one line."""


@dataclass(frozen=True)
class Machine:
    """Facts about this machine."""

    system: str
    """As `sys.platform` says: "linux", "darwin"."""
    processor: str
    """As `platform.machine()` says: "x86_64", "aarch64", "arm64"."""
    glibc: tuple[int, int] | None
    """Version of the C library; None where it is another one (musl)."""
    free_disk_gb: float
    """Free space of the file system that holds the checkout, in 10^9 bytes."""
    distribution: str
    """`ID` and `ID_LIKE` of /etc/os-release, such as `ubuntu debian`; empty where there is no such file."""


def read_machine(checkout: Path) -> Machine:
    """Return the facts about this machine."""
    library, version = platform.libc_ver()
    numbers = version.split(".")
    is_glibc = library == "glibc" and len(numbers) >= 2
    return Machine(
        system=sys.platform,
        processor=platform.machine(),
        glibc=(int(numbers[0]), int(numbers[1])) if is_glibc else None,
        free_disk_gb=shutil.disk_usage(checkout).free / 1e9,
        distribution=_read_distribution(Path("/etc/os-release")),
    )


def _read_distribution(release_file: Path) -> str:
    if not release_file.exists():
        return ""
    settings = dict(line.split("=", 1) for line in release_file.read_text().splitlines() if "=" in line)
    return " ".join(settings.get(key, "").strip('"') for key in ("ID", "ID_LIKE")).strip()


def check_machine(machine: Machine, has_environment: bool) -> None:
    """Check what no installation can change: system, processor, C library, disk.

    Args:
        machine: The machine's facts.
        has_environment: Whether the environment exists already, so that an update needs less disk.

    Raises:
        SetupError: Shortlist cannot run here; the text says what was found, what is needed and the next step.
    """
    if (machine.system, machine.processor) != ("linux", "x86_64"):
        raise SetupError(f"Shortlist runs on Linux x86-64 (this is {machine.system} {machine.processor}); {CONTAINER}")
    if machine.glibc is None or machine.glibc < MIN_GLIBC:
        present = f"glibc {version_text(machine.glibc)}" if machine.glibc else "another C library"
        raise SetupError(
            f"Triton Inference Server needs glibc {version_text(MIN_GLIBC)} or later, as in Debian 12 and Ubuntu 22.04"
            f" (this machine has {present}); {CONTAINER}"
        )
    if not has_environment:
        check_disk(machine.free_disk_gb, CPU_DISK_GB, "the environments")


def check_disk(free_gb: float, needed_gb: float, purpose: str) -> None:
    """Check that there is enough free disk.

    Raises:
        SetupError: There is less than needed.
    """
    if free_gb < needed_gb:
        raise SetupError(f"{free_gb:.1f} GB of disk are free, {purpose} need {needed_gb:.1f} GB; next: free some")


def read_nvidia_driver(version_file: Path = Path("/proc/driver/nvidia/version")) -> int | None:
    """Return the major version of the NVIDIA driver, such as 580; None without one."""
    if not version_file.exists():
        return None
    match = re.search(r"Kernel Module(?: for x86_64)?\s+(\d+)\.", version_file.read_text())
    return int(match[1]) if match else None


def check_gpu(driver: int | None, python: tuple[int, int], free_disk_gb: float) -> None:
    """Check that what a GPU needs can be installed and would run: driver, Python, disk.

    Args:
        driver: Major version of the NVIDIA driver; None without one.
        python: Version of the main environment's Python.
        free_disk_gb: Free disk, in 10^9 bytes.

    Raises:
        SetupError: Something is missing.
    """
    if driver is None or driver < MIN_NVIDIA_DRIVER:
        present = f"version {driver}" if driver else "none"
        raise SetupError(
            f"a GPU needs the NVIDIA driver {MIN_NVIDIA_DRIVER} or later (found: {present}); next: install it, or keep"
            " runtime.engine: cpu"
        )
    if python != GPU_VERSION:
        raise SetupError(
            f"the packages for a GPU are locked for Python {version_text(GPU_VERSION)}"
            f" (.venv has {version_text(python)}); next: rm -rf .venv && make setup PYTHON=/path/to/python3.11"
        )
    check_disk(free_disk_gb, GPU_DISK_GB, "the packages for a GPU")


def choose_main_python(pythons: list[PythonBuild], machine: Machine) -> PythonBuild:
    """Return the Python for the main environment: one that Triton can use as well where there is one, else the oldest.

    Raises:
        SetupError: None fits.
    """
    supported = [python for python in pythons if python.minor_version in MAIN_VERSIONS]
    usable = [python for python in supported if python.has_venv]
    if usable:
        return min(usable, key=lambda python: (not python.runs_triton, python.minor_version))
    if supported:
        name = f"python{version_text(supported[0].minor_version)}-venv"
        raise SetupError(f"{supported[0].executable} lacks the module venv; next: {_install(machine, name, name)}")
    present = ", ".join(f"{version_text(python.version)} at {python.executable}" for python in pythons) or "none"
    package = "python3.11 python3.11-venv libpython3.11"
    raise SetupError(
        f"Shortlist needs Python 3.11, 3.12 or 3.13 (found: {present});"
        f" next: {_install(machine, package, 'python3.11')} (or uv python install 3.11)"
    )


def choose_triton_python(pythons: list[PythonBuild], main: PythonBuild, machine: Machine) -> PythonBuild:
    """Return the Python for Triton's environment: the main one where it fits, else the oldest that fits.

    Triton's Python backend loads a shared libpython, and is wrong, silently, with numpy 2; numpy 1.26 has wheels up to
    Python 3.12.

    Raises:
        SetupError: None fits.
    """
    usable = [python for python in pythons if python.runs_triton]
    if usable:
        return min(usable, key=lambda python: (python.executable != main.executable, python.minor_version))
    static = [python for python in pythons if python.minor_version in TRITON_VERSIONS and python.has_venv]
    if static:
        version = version_text(static[0].minor_version)
        raise SetupError(
            f"Triton needs a shared libpython{version} beside {static[0].executable};"
            f" next: {_install(machine, f'libpython{version}', f'python{version}-libs')} (or make python)"
        )
    raise SetupError(
        f"Triton needs Python 3.11 or 3.12 with a shared libpython (found: {version_text(main.version)} at"
        f" {main.executable}); next: make python (uv downloads Python 3.11)"
    )


def _install(machine: Machine, debian_packages: str, fedora_packages: str) -> str:
    families = machine.distribution.split()
    superuser = "" if hasattr(os, "geteuid") and os.geteuid() == 0 else "sudo "
    if {"debian", "ubuntu"} & set(families):
        return f"{superuser}apt-get install {debian_packages}"
    if {"fedora", "rhel", "centos", "amzn"} & set(families):
        return f"{superuser}dnf install {fedora_packages}"
    return f"install {debian_packages}"
