"""Where Triton lives on this machine: its own small Python environment, beside ours."""

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
_PYTHON = "3.11"
"""Triton's Python backend comes as one program per Python; this one fits the environment."""


@dataclass(frozen=True)
class TritonHome:
    """An environment with Triton in it."""

    venv: Path
    server: Path
    backends: Path
    libraries: tuple[Path, ...]
    """Searched first by the loader: the environment's own libpython, and what the wheel brings along."""

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment of a Triton: nothing of ours leaks into its Python."""
        inherited = {name: os.environ[name] for name in ("HOME", "TMPDIR", "LANG", "TZ") if name in os.environ}
        return {
            **inherited,
            "PATH": f"{self.venv / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "LD_LIBRARY_PATH": ":".join(str(folder) for folder in self.libraries),
            "VIRTUAL_ENV": str(self.venv),
            "PYTHONNOUSERSITE": "1",
            "PYTHONUNBUFFERED": "1",
            # A repository stays as it was written; its digest is compared before every start.
            "PYTHONDONTWRITEBYTECODE": "1",
            # Threads that spin at barriers steal the cores of whoever shares them.
            "OMP_WAIT_POLICY": "PASSIVE",
        }


def find_triton() -> TritonHome:
    """Return the machine's Triton; the folder of its backend is made the first time.

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
    packages = venv / "lib" / f"python{_PYTHON}" / "site-packages"
    tree = packages / "pytriton" / "tritonserver"
    server = tree / "bin" / "tritonserver"
    if not server.exists():
        source = f" (from {VARIABLE})" if venv_setting else ""
        raise StackError(f"{venv}{source}: no Triton for Python {_PYTHON} in there; run `make setup` once.")
    # Named after the file's size and time: another version of the wheel gets another folder.
    library = (tree / "backends" / "python" / "libtriton_python.so").stat()
    backends = venv / f"triton-backends-{library.st_size:x}-{library.st_mtime_ns:x}"
    if not backends.exists():
        _make_backends(tree, backends)
    libraries = (_library_folder(venv), packages / "nvidia_pytriton.libs")
    return TritonHome(venv=venv, server=server, backends=backends, libraries=libraries)


def _make_backends(tree: Path, folder: Path) -> None:
    from filelock import FileLock

    stub = tree / "python_backend_stubs" / _PYTHON / "triton_python_backend_stub"
    with FileLock(f"{folder}.lock"):
        if folder.exists():
            return
        with atomic_folder(folder) as staging:
            shutil.copytree(tree / "backends" / "python", staging / "python")
            shutil.copy(stub, staging / "python")
            (staging / "python" / stub.name).chmod(0o755)


def _library_folder(venv: Path) -> Path:
    """Return the folder of the libpython of an environment, which the backend's program must load."""
    ask = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
    try:
        answer = subprocess.run(  # noqa: S603  (the environment's own Python)
            [str(venv / "bin" / "python"), "-I", "-S", "-c", ask],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise StackError(f"{venv}: its Python does not run ({error}); remove it and run `make setup`.") from None
    folder = Path(answer.stdout.strip())
    # Debian keeps the library one level deeper.
    library_folders = [path.parent for path in (*folder.glob("libpython3.11.so*"), *folder.glob("*/libpython3.11.so*"))]
    if not library_folders:
        raise StackError(
            f"{folder}: no shared libpython{_PYTHON}, which Triton's Python backend needs;"
            " make the environment with a Python built with --enable-shared."
        )
    return library_folders[0]
