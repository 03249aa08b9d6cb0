"""What the set-up says of a machine before it downloads anything."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from installer.machine import (
    Machine,
    SetupError,
    check_gpu,
    check_machine,
    choose_main_python,
    choose_triton_python,
    read_machine,
    read_nvidia_driver,
)
from installer.pythons import PythonBuild

DEBIAN = Machine("linux", "x86_64", (2, 36), free_disk_gb=50, distribution="debian")
PYTHON_3_11 = PythonBuild("/usr/bin/python3", (3, 11, 2), has_venv=True, has_shared_library=True)


def python(version: str, has_venv: bool = True, has_shared_library: bool = True) -> PythonBuild:
    major, minor, patch = map(int, version.split("."))
    return PythonBuild(f"/usr/bin/python{major}.{minor}", (major, minor, patch), has_venv, has_shared_library)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"system": "darwin", "processor": "arm64"}, r"Linux x86-64 \(this is darwin arm64\); next.*make container"),
        ({"processor": "aarch64"}, r"Linux x86-64 \(this is linux aarch64\); next.*make container"),
        ({"glibc": (2, 34)}, r"glibc 2\.35 or later.*\(this machine has glibc 2\.34\); next.*make container"),
        ({"glibc": None}, r"this machine has another C library.*make container"),
        ({"free_disk_gb": 1.2}, r"1\.2 GB of disk are free, the environments need 3\.5 GB; next: free some"),
    ],
)
def test_a_machine_that_cannot_run_it_is_refused_in_one_line(change: dict[str, object], message: str) -> None:
    with pytest.raises(SetupError, match=message) as refused:
        check_machine(dataclasses.replace(DEBIAN, **change), has_environment=False)
    assert "\n" not in str(refused.value)


def test_an_update_of_an_environment_needs_no_free_disk_for_a_whole_environment() -> None:
    check_machine(dataclasses.replace(DEBIAN, free_disk_gb=1), has_environment=True)


def test_this_machine_is_read(tmp_path: Path) -> None:
    machine = read_machine(tmp_path)
    check_machine(machine, has_environment=True)
    assert machine.glibc is not None
    assert machine.free_disk_gb > 0


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (["3.12.3", "3.11.2"], "3.11"),
        (["3.13.5"], "3.13"),
        (["3.13.5", "3.12.3"], "3.12"),  # the one that Triton's environment can use too
        (["3.9.2", "3.14.0", "3.12.3"], "3.12"),
    ],
)
def test_a_python_that_fits_is_preferred_to_other_installed_versions(versions: list[str], chosen: str) -> None:
    main = choose_main_python([python(version) for version in versions], DEBIAN)
    assert main.executable == f"/usr/bin/python{chosen}"


@pytest.mark.parametrize(
    ("distribution", "pythons", "message"),
    [
        ("debian", [], r"3\.11, 3\.12 or 3\.13 \(found: none\); next: .*apt-get install python3\.11 python3\.11-venv"),
        (
            "ubuntu debian",
            [python("3.10.12")],
            r"\(found: 3\.10\.12 at /usr/bin/python3\.10\); next: .*apt-get install",
        ),
        ("rhel fedora", [python("3.9.18")], r"next: .*dnf install python3\.11 \(or uv python install 3\.11\)"),
        ("debian", [python("3.11.2", has_venv=False)], r"lacks the module venv; next: .*install python3\.11-venv"),
    ],
)
def test_a_missing_python_is_named_with_its_install_command(
    distribution: str, pythons: list[PythonBuild], message: str
) -> None:
    with pytest.raises(SetupError, match=message):
        choose_main_python(pythons, dataclasses.replace(DEBIAN, distribution=distribution))


def test_tritons_python_is_the_main_one_where_that_fits() -> None:
    pythons = [python("3.11.2"), python("3.12.3")]
    assert choose_triton_python(pythons, pythons[1], DEBIAN) == pythons[1]


def test_tritons_python_may_differ_from_the_main_python() -> None:
    pythons = [python("3.13.5"), python("3.11.2", has_shared_library=False), python("3.12.3")]
    assert choose_triton_python(pythons, pythons[0], DEBIAN) == pythons[2]


@pytest.mark.parametrize(
    ("pythons", "message"),
    [
        (
            [python("3.11.2", has_shared_library=False)],
            r"shared libpython3\.11 beside /usr/bin/python3\.11; next: .*install libpython3\.11 \(or make python\)",
        ),
        ([python("3.13.5")], r"3\.11 or 3\.12 with a shared libpython \(found: 3\.13\.5 at .*\); next: make python"),
    ],
)
def test_a_python_that_triton_lacks_is_named_with_its_install_command(pythons: list[PythonBuild], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        choose_triton_python(pythons, pythons[0], DEBIAN)


@pytest.mark.parametrize(
    ("driver", "version", "free_disk_gb", "message"),
    [
        (
            None,
            (3, 11),
            50,
            r"NVIDIA driver 580 or later \(found: none\); next: install it, or keep runtime\.engine: cpu",
        ),
        (535, (3, 11), 50, r"NVIDIA driver 580 or later \(found: version 535\)"),
        (580, (3, 12), 50, r"locked for Python 3\.11 \(\.venv has 3\.12\); next: rm -rf \.venv && make setup PYTHON="),
        (580, (3, 11), 5, r"5\.0 GB of disk are free, the packages for a GPU need 12\.0 GB"),
    ],
)
def test_a_machine_that_cannot_use_the_packages_for_a_gpu_is_refused(
    driver: int | None, version: tuple[int, int], free_disk_gb: float, message: str
) -> None:
    with pytest.raises(SetupError, match=message):
        check_gpu(driver, version, free_disk_gb)


def test_a_machine_with_a_new_driver_may_install_the_gpu_packages(tmp_path: Path) -> None:
    version_file = tmp_path / "version"
    version_file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:05:01 UTC 2025\n")
    assert read_nvidia_driver(version_file) == 580
    assert read_nvidia_driver(tmp_path / "absent") is None
    check_gpu(580, (3, 11), free_disk_gb=50)
