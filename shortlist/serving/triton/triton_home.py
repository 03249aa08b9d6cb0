"""Finds Triton on this machine: it has its own small Python environment."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from shortlist.serving.processes.errors import StackError
from shortlist.storage.artefacts import atomic_folder
from shortlist.system.project import project_root

VARIABLE = "SHORTLIST_TRITON_VENV"
"""Environment variable that names another environment than `.venv-triton` of the checkout."""
PYTHON_VERSIONS = ("3.11", "3.12")
"""Versions of Python that an environment of Triton may have: its Python backend needs numpy 1.26."""


@dataclass(frozen=True)
class TritonHome:
    """A Python environment that contains Triton."""

    venv: Path
    server: Path
    backends: Path
    libraries: tuple[Path, ...]
    """Folders for LD_LIBRARY_PATH: the environment's libpython, and the libraries of the wheel."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of Triton, beside those that every program inherits."""
        return {
            "PATH": f"{self.venv / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "LD_LIBRARY_PATH": ":".join(str(folder) for folder in self.libraries),
            "VIRTUAL_ENV": str(self.venv),
            "PYTHONNOUSERSITE": "1",
            "PYTHONUNBUFFERED": "1",
            # No bytecode in a repository: its digest is compared before every start.
            "PYTHONDONTWRITEBYTECODE": "1",
            # Threads that spin at barriers take cores from other processes.
            "OMP_WAIT_POLICY": "PASSIVE",
        }


def find_triton() -> TritonHome:
    """Return the machine's Triton; creates the folder of its backend the first time.

    Raises:
        StackError: There is none, or it cannot run here.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise StackError(
            f"Triton runs here on Linux x86-64 only (this is {sys.platform} {platform.machine()});"
            " deploy to a cluster, or serve from such a machine."
        )
    venv_setting = os.environ.get(VARIABLE)
    venv = Path(venv_setting).resolve() if venv_setting else project_root() / ".venv-triton"
    version = _python_version(venv, f" (from {VARIABLE})" if venv_setting else "")
    packages = venv / "lib" / f"python{version}" / "site-packages"
    tree = packages / "pytriton" / "tritonserver"
    # Named after the file's size and time: another version of the wheel gets another folder.
    library = (tree / "backends" / "python" / "libtriton_python.so").stat()
    backends = venv / f"triton-backends-{library.st_size:x}-{library.st_mtime_ns:x}"
    if not backends.exists():
        _make_backends(tree, backends, version)
    libraries = (_library_folder(venv, version), packages / "nvidia_pytriton.libs")
    return TritonHome(venv=venv, server=tree / "bin" / "tritonserver", backends=backends, libraries=libraries)


def _python_version(venv: Path, origin: str) -> str:
    """Return the version of the Python of an environment in which Triton is installed, such as `3.11`."""
    for version in PYTHON_VERSIONS:
        if (venv / "lib" / f"python{version}" / "site-packages/pytriton/tritonserver/bin/tritonserver").exists():
            return version
    versions = " or ".join(PYTHON_VERSIONS)
    raise StackError(f"{venv}{origin}: no Triton for Python {versions} in there; run `make setup` once.")


def _make_backends(tree: Path, folder: Path, version: str) -> None:
    from filelock import FileLock

    # Triton's Python backend comes as one program per version of Python.
    stub = tree / "python_backend_stubs" / version / "triton_python_backend_stub"
    with FileLock(f"{folder}.lock"):
        if folder.exists():
            return
        with atomic_folder(folder) as staging:
            shutil.copytree(tree / "backends" / "python", staging / "python")
            shutil.copy(stub, staging / "python")
            (staging / "python" / stub.name).chmod(0o755)


def _library_folder(venv: Path, version: str) -> Path:
    """Return the folder of the libpython of an environment, which the backend's program must load."""
    program = "import sys, sysconfig; print(sysconfig.get_config_var('LIBDIR')); print(sys.base_prefix + '/lib')"
    try:
        answer = subprocess.run(  # noqa: S603  (the environment's own Python)
            [str(venv / "bin" / "python"), "-I", "-S", "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise StackError(f"{venv}: its Python does not run ({error}); remove it and run `make setup`.") from None
    folders = [Path(line) for line in answer.stdout.splitlines()]
    name = f"libpython{version}.so*"
    # Debian keeps the library one level deeper.
    for folder in folders:
        for path in (*folder.glob(name), *folder.glob(f"*/{name}")):
            return path.parent
    raise StackError(
        f"{folders[0]}: no shared libpython{version}, which Triton's Python backend needs; run `make setup`, which says"
        " how to get one."
    )
