"""The GPU image's packages are consistent: every requirement is pinned in a version that satisfies it."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "requirements"
IMAGE = {"python_full_version": "3.11.9", "python_version": "3.11"}
"""Python of the image."""


def pins() -> dict[str, str]:
    """Return what the image installs: run.txt without its XGBoost for CPUs, cluster.txt, gpu.txt."""
    text = "\n".join((FOLDER / name).read_text() for name in ("run.txt", "cluster.txt", "gpu.txt"))
    lines = [line.partition(" #")[0] for line in text.splitlines() if re.match(r"[\w.-]+(\[.*\])?==", line)]
    needed = [line for line in lines if (marker := Requirement(line).marker) is None or marker.evaluate(IMAGE)]
    matches = re.findall(r"^([\w.-]+)(?:\[.*\])?==([^\s;]+)", "\n".join(needed), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in matches if name != "xgboost-cpu"}


def lock() -> dict[str, list[str]]:
    requirements_by_package: dict[str, list[str]] = json.loads((FOLDER / "gpu.json").read_text())
    return requirements_by_package


def problems(pinned: Mapping[str, str], needs: Mapping[str, list[str]]) -> Iterator[str]:
    """Give what keeps a resolver from taking the pins as they are."""
    named = {f"{name}=={version}" for name, version in pinned.items()}
    yield from (
        f"{name} is pinned, and gpu.json has other versions: make lock-gpu" for name in sorted(named - set(needs))
    )
    yield from (f"{name} is installed and nowhere pinned" for name in sorted(set(needs) - named))
    for name, requirements in needs.items():
        for requirement in map(Requirement, requirements):
            version = pinned.get(canonicalize_name(requirement.name))
            if version is None:
                yield f"{name} asks for {requirement}, which is not pinned"
            elif not requirement.specifier.contains(version, prereleases=True):
                yield f"{name} asks for {requirement}, and {version} is pinned"


def test_every_requirement_of_every_package_is_met() -> None:
    assert list(problems(pins(), lock())) == []


@pytest.mark.parametrize(
    ("package", "version", "problem"),
    [
        ("polars", "1.42.0", "cudf-polars-cu13==26.6.0 asks for polars<1.40,>=1.35, and 1.42.0 is pinned"),
        ("pandas", "3.0.0", "cudf-cu13==26.6.0 asks for pandas<2.4.0,>=2.0, and 3.0.0 is pinned"),
        ("rmm-cu13", "26.8.0", "cudf-cu13==26.6.0 asks for rmm-cu13==26.6.*, and 26.8.0 is pinned"),
        ("triton", "3.6.0", "torch==2.13.0 asks for triton==3.7.1, and 3.6.0 is pinned"),
        ("nvidia-cublas", "12.9.0", "cuda-toolkit==13.0.3.0 asks for nvidia-cublas"),
    ],
)
def test_a_wrong_pin_is_reported(package: str, version: str, problem: str) -> None:
    changed = {**pins(), package: version}
    reported = list(problems(changed, lock()))
    assert any(problem in text for text in reported), reported
    assert f"{package}=={version} is pinned, and gpu.json has other versions: make lock-gpu" in reported


def test_an_unpinned_package_is_reported() -> None:
    incomplete_pins = {name: version for name, version in pins().items() if name != "libcudf-cu13"}
    assert "cudf-cu13==26.6.0 asks for libcudf-cu13==26.6.*, which is not pinned" in list(
        problems(incomplete_pins, lock())
    )


def test_the_lock_names_no_host() -> None:
    assert not re.search(r"https?:|file:|@ ", (FOLDER / "gpu.json").read_text())


@pytest.fixture
def locker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_lock", FOLDER / "gpu_lock.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def resolved(name: str, *requires: str, extras: tuple[str, ...] = (), requested: bool = False) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "version": "1.0+cpu", "requires_dist": list(requires)},
        "requested_extras": extras,
        "requested": requested,
    }


def test_a_lock_keeps_the_markers_and_extras_of_the_image(locker: ModuleType) -> None:
    report = [
        resolved(
            "Whole_Thing",
            'Part[fast,mypy]>=1; sys_platform == "linux"',
            'other; sys_platform == "win32"',
            requested=True,
        ),
        resolved("part", 'wings; extra == "fast"', 'wheels; extra == "slow"', 'mypy; extra == "mypy"', "body"),
        resolved("mypy"),
    ]
    assert locker.locked(report) == {"part==1.0": ["body", "wings"], "whole-thing==1.0": ["Part[fast,mypy]>=1"]}
