"""A digest of everything that ingest would read."""

from __future__ import annotations

import hashlib
from pathlib import Path

from shortlist.data.side_tables import models_of
from shortlist.data.sources import log_files, side_files
from shortlist.spec.data import Data, GeneratedSource
from shortlist.spec.load import canonical_json
from shortlist.storage.artefacts import sha256
from shortlist.storage.objects_source import SourceFiles, is_remote


def input_digest(data: Data, location: Path | str) -> str:
    """Return a digest of the names, sizes and contents of the log's and the side tables' files; 16 hexadecimal digits.

    The models of computed columns are digested too. A generated log is digested by its declaration, since the
    declaration decides its bytes; files in an object store by their listing, whose tags change with the contents.

    Args:
        data: The spec's section.
        location: A path, or `s3://...` or `gs://...`.

    Raises:
        DataError: A file is missing, empty, or of unknown format.
        ShortlistError: The object store is unavailable or refuses.
    """
    if isinstance(data.source, GeneratedSource):
        models = "".join(map(sha256, models_of(data, Path(location))))
        return hashlib.sha256((canonical_json(data.source) + models).encode()).hexdigest()[:16]
    if isinstance(location, str) and is_remote(location):
        listed = "".join(f"{file.name}\0{file.size}\0{file.tag}\0" for file in SourceFiles(location).listing())
        return hashlib.sha256(listed.encode()).hexdigest()[:16]
    location = Path(location)
    files = [("log", file) for file in log_files(data.source, location)]
    files += [(table.name, file) for table in data.side_tables for file in side_files(table, location)]
    total = hashlib.sha256()
    for role, file in files:
        total.update(f"{role}\0{file.name}\0{file.path.stat().st_size}\0{sha256(file.path)}\0".encode())
    for model in models_of(data, location):
        total.update(f"model\0{model.name}\0{sha256(model)}\0".encode())
    return total.hexdigest()[:16]
