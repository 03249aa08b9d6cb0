"""Digest of the input of ingest: the log's and the side tables' files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from shortlist.data.reading.sources import log_files, side_files
from shortlist.data.side_tables.ingest import find_model_files
from shortlist.spec.data import Data, GeneratedSource
from shortlist.spec.load import canonical_json
from shortlist.storage.artefacts import sha256
from shortlist.storage.objects_source import SourceFiles, is_remote


def input_digest(data: Data, location: Path | str) -> str:
    """Return a digest of names, sizes and contents of the log's and the side tables' files; 16 hexadecimal digits.

    It includes the models of computed columns. The digest of a generated log is that of its declaration, which
    determines its bytes; the digest of an object store is that of its listing, whose tags change with the contents.

    Args:
        data: The spec's section.
        location: A path, or `s3://...` or `gs://...`.

    Raises:
        DataError: A file is missing, empty, or of unknown format.
        ShortlistError: The object store is unavailable or refuses.
    """
    if isinstance(data.source, GeneratedSource):
        models = "".join(map(sha256, find_model_files(data, Path(location))))
        return hashlib.sha256((canonical_json(data.source) + models).encode()).hexdigest()[:16]
    if isinstance(location, str) and is_remote(location):
        listing = "".join(f"{file.name}\0{file.size}\0{file.tag}\0" for file in SourceFiles(location).listing())
        return hashlib.sha256(listing.encode()).hexdigest()[:16]
    location = Path(location)
    files = [("log", file) for file in log_files(data.source, location)]
    files += [(table.name, file) for table in data.side_tables for file in side_files(table, location)]
    digest = hashlib.sha256()
    for role, file in files:
        # The files of a Delta table have unique names and never change.
        content = sha256(file.path) if file.stored is None else ""
        digest.update(f"{role}\0{file.name}\0{file.path.stat().st_size}\0{content}\0".encode())
    for model in find_model_files(data, location):
        digest.update(f"model\0{model.name}\0{sha256(model)}\0".encode())
    return digest.hexdigest()[:16]
