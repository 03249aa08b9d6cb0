"""The user's files at hand, wherever they lie."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from shortlist.storage.objects_source import SourceFiles, is_remote


@contextmanager
def fetch_input(location: str, needed: Callable[[Path], Collection[Path]] | None = None) -> Iterator[Path]:
    """Give a local path of the user's files; those of an object store are copied first, and the copy goes afterwards.

    Args:
        location: A path, or `s3://...` or `gs://...`.
        needed: Returns, of the local path of the files, those to copy; of the others only name and size are right.
            None: all are copied.

    Raises:
        DataError: Nothing is there, or it changed while it was copied.
        ShortlistError: The store is unavailable or refuses.
    """
    if not is_remote(location):
        yield Path(location)
        return
    with TemporaryDirectory(prefix="shortlist-data-") as folder:
        yield SourceFiles(location).fetch(Path(folder), needed)
