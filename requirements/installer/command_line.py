"""The set-up's commands: look at the machine first, then install."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from installer.byte_code import compiled_modules
from installer.machine import (
    SetupError,
    check_gpu,
    check_machine,
    choose_main_python,
    choose_triton_python,
    read_machine,
    read_nvidia_driver,
)
from installer.pythons import PYTHONS_FOLDER, PythonBuild, find_pythons, probe_python
from installer.torch_builds import PROOF, choose_torch_sources, install_torch, list_torch_sources
from installer.unused_files import remove_unused_files

CHECKOUT = Path(__file__).resolve().parents[2]
LOCKS = CHECKOUT / "requirements" / "lock"
PACKAGE_SETS = {
    "cluster": "what the cluster profile needs",
    "test": "test tools",
    "catboost": "CatBoost",
    "docs": "the documentation generator",
}
"""Lock files that are installed as they are, and what the set-up calls them."""
OWN_PACKAGES = ("components", "models", "monitoring", "pipelines", "shortlist")
"""Packages of the checkout."""
ENVIRONMENT_PROGRAM = """
import ensurepip, glob, os, sys, sysconfig, venv, zipfile
venv.create(sys.argv[1], clear=True, symlinks=True)
wheels = sysconfig.get_config_var("WHEEL_PKG_DIR") or os.path.join(os.path.dirname(ensurepip.__file__), "_bundled")
pip_wheel = max(glob.glob(os.path.join(wheels, "pip-*.whl")))
zipfile.ZipFile(pip_wheel).extractall(sysconfig.get_path("purelib", "venv", {"base": sys.argv[1]}))
"""
"""Makes an environment with the pip that comes with a Python. `ensurepip` would compile all of it, for seconds."""


class Installer:
    """Makes the environments of a checkout; all that its commands print is in `setup.log` of the main one."""

    def __init__(self, venv: Path, triton_venv: Path, docs_venv: Path) -> None:
        self.venv = venv
        self.triton_venv = triton_venv
        self.docs_venv = docs_venv
        self.log = venv / "setup.log"
        self.uv = str(venv / "bin" / "uv")
        self.python = str(venv / "bin" / "python")
        self._pip_settings: dict[str, str] = {}

    def choose_pythons(self) -> tuple[PythonBuild, PythonBuild]:
        """Return the Python of the main environment and the one of Triton's, after a check of the machine.

        Raises:
            SetupError: The machine lacks something; nothing was downloaded.
        """
        machine = read_machine(CHECKOUT)
        main_environment = probe_python(self.venv / "bin" / "python")
        check_machine(machine, has_environment=main_environment is not None)
        pythons = find_pythons(CHECKOUT)
        if requested := os.environ.get("PYTHON"):
            python = probe_python(Path(requested))
            if python is None:
                raise SetupError(f"PYTHON={requested}: no Python runs there; point to one: PYTHON=/path/to/python3.11")
            main = choose_main_python([python], machine)
            pythons = [python, *pythons]
        else:
            main = choose_main_python(pythons, machine)
        return main, choose_triton_python(pythons, main, machine)

    def install_main(self) -> None:
        """Make the main environment: uv, torch, the packages of a run, and the framework itself."""
        main, _ = self.choose_pythons()
        self._make_uv(main)
        # Before torch, which imports some of them; installed without dependencies, none of them brings torch along.
        self._install_lock("200 packages", self.python, LOCKS / "run.txt")
        editable = (self.uv, "pip", "install", "--quiet", "--python", self.python, "--no-deps", "--no-build-isolation")
        self._run("shortlist itself", (*editable, "-e", str(CHECKOUT)))
        own_modules = [path for name in OWN_PACKAGES for path in (CHECKOUT / name).rglob("*.py")]
        with self._compiled_modules(self.venv, own_modules):
            self._install_torch()
            remove_unused_files(_site_packages(self.venv))
        with self._compiled_modules(self.venv):  # those of torch
            pass

    def _compiled_modules(self, venv: Path, own_modules: Sequence[Path] = ()) -> AbstractContextManager[None]:
        """Compile what runs import from an environment, beside what the block does."""
        name = "run" if venv == self.venv else "triton"
        modules = (LOCKS / f"{name}-modules.txt").read_text().splitlines()
        return compiled_modules(str(venv / "bin" / "python"), _site_packages(venv), [*own_modules, *modules])

    def _install_torch(self) -> None:
        requirements = (CHECKOUT / "requirements" / "run.txt").read_text().splitlines()
        requirement = next(line for line in requirements if line.startswith("torch=="))
        if not self._proves_torch(requirement):
            sources = list_torch_sources(self.python, self.uv, LOCKS, self._pip_settings)
            sources = choose_torch_sources(sources, os.environ.get("TORCH", ""))
            free_disk_gb = read_machine(CHECKOUT).free_disk_gb
            install_torch(sources, self._try, lambda: self._proves_torch(requirement), free_disk_gb)

    def install_triton(self) -> None:
        """Make Triton's own environment: its Python backend needs numpy 1, Feast needs numpy 2."""
        main, triton = self.choose_pythons()
        self._make_uv(main)
        present = probe_python(self.triton_venv / "bin" / "python")
        if present is None or present.minor_version != triton.minor_version:
            self._run_uv_venv(triton, self.triton_venv)
        self._install_lock("Triton", str(self.triton_venv / "bin" / "python"), LOCKS / "triton.txt")
        with self._compiled_modules(self.triton_venv):
            remove_unused_files(_site_packages(self.triton_venv))

    def install_packages(self, name: str) -> None:
        """Install a further lock file, into the main environment or the documentation's own."""
        python = self.python
        if name == "docs":
            main, _ = self.choose_pythons()
            self._make_uv(main)
            self._run_uv_venv(main, self.docs_venv)
            python = str(self.docs_venv / "bin" / "python")
        self._pip_settings = read_pip_settings(self.python)
        self._install_lock(PACKAGE_SETS[name], python, LOCKS / f"{name}.txt")

    def check_gpu(self) -> None:
        """Check that what a GPU needs can be installed here and would run.

        Raises:
            SetupError: Something is missing.
        """
        present = probe_python(Path(self.python))
        main = present or self.choose_pythons()[0]
        check_gpu(read_nvidia_driver(), main.minor_version, read_machine(CHECKOUT).free_disk_gb)

    def install_gpu(self) -> None:
        """Add cuDF, and XGBoost and torch for CUDA 13, to the main environment.

        XGBoost's build for GPUs takes the place of that for CPUs: both are imported by one name.
        """
        self.check_gpu()
        pip = (self.python, "-m", "pip")
        self._run("xgboost-cpu", (*pip, "uninstall", "--yes", "--quiet", "xgboost-cpu"), is_printed=False)
        install = (*pip, "install", "--quiet", "--disable-pip-version-check", "--no-input", "-r")
        self._run("what a GPU needs (gigabytes)", (*install, str(LOCKS.parent / "gpu.txt")))

    def download_python(self) -> None:
        """Let uv download a Python that Triton's environment can use, into the checkout."""
        machine = read_machine(CHECKOUT)
        check_machine(machine, has_environment=False)
        self._make_uv(choose_main_python(find_pythons(CHECKOUT), machine))
        folder = str(CHECKOUT / PYTHONS_FOLDER)
        self._run("Python 3.11", (self.uv, "python", "install", "--no-bin", "--install-dir", folder, "3.11"))

    def _make_uv(self, main: PythonBuild) -> None:
        """Make the main environment with uv in it, unless it is there."""
        present = probe_python(Path(self.python))
        if present is None or not Path(self.uv).exists():
            if present is None:
                print(f"Setting up {self.venv.name} with {main.executable} (once; details in {self.log})", flush=True)
                program = (main.executable, "-c", ENVIRONMENT_PROGRAM, str(self.venv))
                self._run(self.venv.name, program, is_printed=False)
            pip = (self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input")
            self._run("uv", (*pip, "--no-compile", "--require-hashes", "-r", str(LOCKS / "uv.txt")), is_printed=False)
        self._pip_settings = read_pip_settings(self.python)

    def _run_uv_venv(self, python: PythonBuild, folder: Path) -> None:
        """Make an environment without pip."""
        command = (self.uv, "venv", "--quiet", "--clear", "--python", python.executable, str(folder))
        self._run(folder.name, command, is_printed=False)

    def _install_lock(self, title: str, python: str, lock: Path) -> None:
        command = (self.uv, "pip", "install", "--quiet", "--python", python, "--no-deps", "--require-hashes", "-r")
        self._run(title, (*command, str(lock)))

    def _proves_torch(self, requirement: str) -> bool:
        """Return whether the environment's torch has the wanted version, can be imported and computes."""
        completed = self._execute((self.python, "-c", PROOF))
        version = requirement.partition("==")[2]
        return completed.returncode == 0 and completed.stdout.split("+")[0].strip() == version

    def _run(self, title: str, command: tuple[str, ...], is_printed: bool = True) -> None:
        if not self._try(title, command, is_printed=is_printed):
            lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
            raise SetupError("\n".join([*lines[-15:], f"Set-up failed: see {self.log}, then run make again"]))

    def _try(self, title: str, command: tuple[str, ...], is_printed: bool = True) -> bool:
        started = time.monotonic()
        if is_printed:
            print(f"  installing {title} ... ", end="", flush=True)
        is_installed = self._execute(command).returncode == 0
        if is_printed:
            print(f"{time.monotonic() - started:.0f} s" if is_installed else "not available here", flush=True)
        return is_installed

    def _execute(self, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        completed = subprocess.run(  # noqa: S603  (our own command lines)
            command, capture_output=True, text=True, check=False, env=installation_environment(self._pip_settings)
        )
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as log:
            log.write(
                f"$ {' '.join(command)}\n{completed.stdout}{completed.stderr}[exit code {completed.returncode}]\n"
            )
        return completed


def _site_packages(venv: Path) -> Path:
    return next((venv / "lib").glob("python3.*")) / "site-packages"


def read_pip_settings(python: str) -> dict[str, str]:
    """Return pip's settings: `index-url`, `cert` and so on; a list's elements have spaces in between.

    As in pip, a variable of the environment comes before the file's section `install`, and that before `global`.
    """
    listing = subprocess.run(  # noqa: S603  (the environment's own pip)
        [python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    settings = {}
    for section in ("global", "install", ":env:"):
        for name, value in re.findall(rf"^{section}\.([\w-]+)='(.*)'$", listing.stdout, re.MULTILINE):
            settings[name] = value.replace(r"\n", " ").strip()
    return settings


def installation_environment(pip_settings: dict[str, str]) -> dict[str, str]:
    """Return the environment of the installers: uv asks the index and trusts the certificates that pip is told."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    settings = {
        "UV_DEFAULT_INDEX": pip_settings.get("index-url"),
        "SSL_CERT_FILE": pip_settings.get("cert"),
        "UV_SYSTEM_CERTS": "true",
        # uv asks for torch's own index once more: where that cannot be reached, the next source is tried.
        "UV_HTTP_RETRIES": "1",
    }
    return {**{key: value for key, value in settings.items() if value}, **environment}


def main(arguments: list[str]) -> int:
    """Run one command of the set-up; return its exit code."""
    parser = argparse.ArgumentParser(prog="installer", description=__doc__)
    parser.add_argument("command", choices=["check", "python", "run", "triton", "check-gpu", "gpu", *PACKAGE_SETS])
    parser.add_argument("--venv", type=Path, default=CHECKOUT / ".venv")
    parser.add_argument("--triton-venv", type=Path, default=CHECKOUT / ".venv-triton")
    parser.add_argument("--docs-venv", type=Path, default=CHECKOUT / ".venv-docs")
    options = parser.parse_args(arguments)
    installer = Installer(options.venv.absolute(), options.triton_venv.absolute(), options.docs_venv.absolute())
    commands = {
        "check": installer.choose_pythons,
        "python": installer.download_python,
        "run": installer.install_main,
        "triton": installer.install_triton,
        "check-gpu": installer.check_gpu,
        "gpu": installer.install_gpu,
    }
    try:
        if options.command in commands:
            commands[options.command]()
        else:
            installer.install_packages(options.command)
    except (SetupError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
