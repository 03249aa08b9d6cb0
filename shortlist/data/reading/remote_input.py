"""Local access to the user's files, also of those in an object store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from shortlist.storage.objects_source import SourceFiles, is_remote


@contextmanager
def fetch_input(location: str, select_files: Callable[[Path], Collection[Path]] | None = None) -> Iterator[Path]:
    """Yield a local path of the user's files; those of an object store are copied first, and removed afterwards.

    Args:
        location: A path, or `s3://...` or `gs://...`.
        select_files: Returns the files to copy, given their local path; the others have only the right name and size.
            None: all are copied.

    Raises:
        DataError: There are no files, or they changed while they were copied.
        ShortlistError: The store is unavailable or refuses.
    """
    if not is_remote(location):
        yield Path(location)
        return
    with TemporaryDirectory(prefix="shortlist-data-") as folder:
        yield SourceFiles(location).fetch(Path(folder), select_files)
