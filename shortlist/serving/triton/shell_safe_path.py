"""Paths that a shell reads as one word, for programs that pass their paths through one."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

from shortlist.serving.processes.errors import StackError

_SAFE = re.compile(r"[\w./+@:=,-]+", re.ASCII)


def shell_safe_path(path: Path) -> Path:
    """Return a path, or where a shell would not read it as one word, a link to it in the folder of temporary files.

    Triton's Python backend starts its processes by `bash -c` with the paths of the backend and of the model, unquoted.

    Raises:
        StackError: The link is another user's, or cannot be made.
    """
    path = path.absolute()
    if _SAFE.fullmatch(str(path)):
        return path
    temporary = Path(tempfile.gettempdir())
    folder = temporary if _SAFE.fullmatch(str(temporary)) else Path("/tmp")  # noqa: S108  (the link's owner is checked)
    link = folder / f"shortlist-path-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
    try:
        if not link.is_symlink() or link.readlink() != path:
            new_link = link.with_name(f"{link.name}.{os.getpid()}")
            new_link.unlink(missing_ok=True)
            new_link.symlink_to(path)
            new_link.replace(link)
        if link.lstat().st_uid != os.getuid():
            raise StackError(f"{link}: another user's; remove it, or move {path} to a path without blanks and quotes")
    except OSError as error:
        raise StackError(
            f"{path}: Triton needs a path without blanks and quotes, and no link to it can be made ({error})"
        ) from None
    return link
