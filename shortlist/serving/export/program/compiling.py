"""Compiles a function to machine code and caches it; a model repository of trees contains this file.

numba caches a compiled function beside its source. A repository must stay unchanged, so the source is copied into the
environment that runs it, once for all versions with the same source.
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
"""Folder of the copies in the environment."""


def compile_function(source: Path, name: str, environment: Path | None = None) -> Callable[..., Any]:
    """Return a function of a file compiled to machine code that runs without the interpreter lock.

    It is compiled at the first call of the first process of an environment; later processes load the cached code. A
    process that cannot write to the environment compiles it for itself.

    Args:
        source: Python file.
        name: Name of the function.
        environment: Folder of the environment; this process's own when left out.
    """
    import numba

    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    cached_source = _cached_copy(source, (environment or Path(sys.prefix)) / FOLDER / digest)
    function = getattr(_module(cached_source or source, f"{source.stem}_{digest}"), name)
    machine_code: Callable[..., Any] = numba.njit(nogil=True, error_model="numpy", cache=cached_source is not None)(
        function
    )
    return machine_code


def _cached_copy(source: Path, folder: Path) -> Path | None:
    """Return a copy of the source for the cache; None when the folder is not writable."""
    text, copy = source.read_bytes(), folder / source.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not copy.exists() or copy.read_bytes() != text:
            temporary = copy.with_suffix(f".{os.getpid()}")
            temporary.write_bytes(text)
            temporary.replace(copy)
    except OSError:
        return None
    return copy if os.access(folder, os.W_OK) else None


def _module(source: Path, name: str) -> Any:
    spec = spec_from_file_location(name, source)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)  # the cached code refers to its module by name
    spec.loader.exec_module(module)
    return module
