"""What a model needs besides its weights to read rows: the declaration and vocabularies it was trained with."""

from __future__ import annotations

import shutil
from pathlib import Path

from shortlist.contracts import Files
from shortlist.storage.artefacts import write_manifest


def pack(model: Path, fitted: Path) -> None:
    """Copy what features were fitted to, statistics left out, into a model folder and write its manifest again.

    Args:
        model: Folder of a trained model.
        fitted: What `shortlist.features.fit.fit` wrote.
    """
    inside = model / Files.PREPROCESSING
    inside.mkdir()
    shutil.copyfile(fitted / Files.FEATURES, inside / Files.FEATURES)
    if (fitted / "vocabularies").is_dir():
        shutil.copytree(fitted / "vocabularies", inside / "vocabularies")
    write_manifest(model)
