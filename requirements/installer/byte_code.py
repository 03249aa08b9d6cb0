"""Byte code of the modules that a run imports, written by the set-up on all cores."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile


@contextmanager
def compiled_modules(python: str, folder: Path, modules: Sequence[Path | str]) -> Iterator[None]:
    """Compile modules beside what the block does; they are compiled when it ends.

    Modules that do not exist, or have up-to-date byte code, are left out.

    Args:
        python: Python whose byte code is written.
        folder: Folder that relative paths start from.
        modules: Files of the modules.
    """
    processes = os.cpu_count() or 1
    command = (python, "-m", "compileall", "-qq", "-i", "-")
    with ExitStack() as stack:
        for number in range(processes):
            paths = stack.enter_context(TemporaryFile("w+"))
            paths.write("".join(f"{module}\n" for module in modules[number::processes]))
            paths.seek(0)
            stack.enter_context(subprocess.Popen(command, cwd=folder, stdin=paths))  # noqa: S603
        yield
