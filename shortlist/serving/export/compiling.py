"""A function compiled to machine code, and kept for the next process; a model repository of trees holds it too.

A compiled function is kept beside its source. A repository stays as it was written, and every version has one, so the
source is copied into the environment that runs it, once for all versions that have the same.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

FOLDER = "compiled"
"""Folder in the environment."""


def compiled(source: Path, name: str, environment: Path | None = None) -> Callable[..., Any]:
    """Return a function of a file as machine code, which other threads need not wait for.

    It is compiled when it is called first, by the first process of an environment; those after it load what that one
    kept. A process that cannot write there compiles it for itself.

    Args:
        source: Python file.
        name: Of the function.
        environment: Folder of the environment; this process's own when left out.
    """
    import numba

    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    kept = _kept(source, (environment or Path(sys.prefix)) / FOLDER / digest)
    function = getattr(_module(kept or source, f"{source.stem}_{digest}"), name)
    machine_code: Callable[..., Any] = numba.njit(nogil=True, error_model="numpy", cache=kept is not None)(function)
    return machine_code


def _kept(source: Path, folder: Path) -> Path | None:
    """Return a copy that nobody moves or changes; None where there can be none."""
    text, copy = source.read_bytes(), folder / source.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not copy.exists() or copy.read_bytes() != text:
            new = copy.with_suffix(f".{os.getpid()}")
            new.write_bytes(text)
            new.replace(copy)
    except OSError:
        return None
    return copy if os.access(folder, os.W_OK) else None


def _module(source: Path, name: str) -> Any:
    spec = spec_from_file_location(name, source)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)  # what was kept asks for its module by name
    spec.loader.exec_module(module)
    return module
