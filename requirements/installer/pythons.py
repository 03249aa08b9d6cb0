"""The Pythons of this machine, and what each can be used for."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

MAIN_VERSIONS = ((3, 11), (3, 12), (3, 13))
"""Versions of Python that the main environment is tested with."""
TRITON_VERSIONS = ((3, 11), (3, 12))
"""Versions that all wheels of Triton's environment exist for: numpy 1.26 ends at 3.12."""
PYTHONS_FOLDER = ".python"
"""Folder of the checkout into which `make python` lets uv download one."""
_SECONDS = 5
_PROBE = """
import importlib.util, json, pathlib, sys, sysconfig
folders = [pathlib.Path(sysconfig.get_config_var("LIBDIR") or ""), pathlib.Path(sys.base_prefix) / "lib"]
name = "libpython%d.%d.so*" % sys.version_info[:2]
print(json.dumps({
    "executable": sys.executable,
    "version": sys.version_info[:3],
    "is_cpython": sys.implementation.name == "cpython",
    "has_venv": all(importlib.util.find_spec(module) is not None for module in ("venv", "ensurepip")),
    "has_shared_library": any(any(folder.glob(pattern)) for folder in folders for pattern in (name, "*/" + name)),
}))
"""


@dataclass(frozen=True)
class PythonBuild:
    """One Python of this machine."""

    executable: str
    version: tuple[int, int, int]
    has_venv: bool
    """Whether it can make environments: Debian has the modules in a package of their own."""
    has_shared_library: bool
    """Whether a shared libpython of its version lies where it looks for libraries."""

    @property
    def minor_version(self) -> tuple[int, int]:
        """Such as (3, 11)."""
        return self.version[0], self.version[1]

    @property
    def runs_triton(self) -> bool:
        """Whether Triton's environment can be made with it."""
        return self.minor_version in TRITON_VERSIONS and self.has_venv and self.has_shared_library


def version_text(version: tuple[int, ...]) -> str:
    """Return a version with dots.

    >>> version_text((3, 11))
    '3.11'
    """
    return ".".join(str(number) for number in version)


def find_pythons(checkout: Path, search_path: str | None = None, home: Path | None = None) -> list[PythonBuild]:
    """Return the Pythons of this machine in the order of `PATH`, then pyenv's, uv's and those of usual folders."""
    home = home or Path.home()
    folders = [Path(folder) for folder in (search_path or os.environ.get("PATH", "")).split(os.pathsep) if folder]
    folders += sorted((home / ".pyenv" / "versions").glob("*/bin"))
    folders += sorted((checkout / PYTHONS_FOLDER).glob("cpython-*/bin"))
    folders += sorted((home / ".local" / "share" / "uv" / "python").glob("cpython-*/bin"))
    folders += [Path("/usr/local/bin"), Path("/usr/bin"), *sorted(Path("/opt").glob("python*/bin"))]
    names = [f"python{version_text(version)}" for version in MAIN_VERSIONS] + ["python3"]
    executables = {path.resolve(): path for folder in folders for name in names if (path := folder / name).exists()}
    # Shims of pyenv are one script with many names: each name is another Python.
    paths = [*executables.values(), *(folder / name for folder in folders if folder.name == "shims" for name in names)]
    with ThreadPoolExecutor(max_workers=8) as threads:
        probed = list(threads.map(probe_python, dict.fromkeys(paths)))
    unique = {python.executable: python for python in probed if python is not None}
    return list(unique.values())


def probe_python(executable: Path) -> PythonBuild | None:
    """Return what a Python says of itself; None for a program that is no CPython or does not run."""
    try:
        completed = subprocess.run(  # noqa: S603  (a Python of this machine)
            [str(executable), "-I", "-c", _PROBE], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
        facts = json.loads(completed.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    if not facts["is_cpython"]:
        return None
    return PythonBuild(
        executable=facts["executable"],
        version=tuple(facts["version"]),
        has_venv=facts["has_venv"],
        has_shared_library=facts["has_shared_library"],
    )
