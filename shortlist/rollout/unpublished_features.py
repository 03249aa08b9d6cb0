"""Features that a version looks up and that are not among the published ones, so that it would answer without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from shortlist.contracts import Files, ShortlistError
from shortlist.features.feast.feast_store_location import FeastStoreLocation
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.features.stored_views.view_index import INDEX, ViewIndex
from shortlist.serving.export.signature import FOLDER, Signature
from shortlist.serving.server.features.tensor_assembler import TensorAssembler
from shortlist.storage.objects import read_file

_MAX_NAMED: Final = 5


def describe_unpublished_features(model_folder: Path, store: FeastStoreLocation) -> str:
    """Return a sentence with the features that a model looks up and that servers could not read; empty without any.

    Args:
        model_folder: Folder of the model.
        store: Location of the published features.
    """
    if not (model_folder / Files.PREPROCESSING).is_dir():
        return ""  # such a model reads its inputs alone
    plan = Preprocessing.load(model_folder / Files.PREPROCESSING).plan
    steps = TensorAssembler(plan, Signature.read(model_folder / FOLDER)).requirements.steps
    looked_up = {place for step in steps for place in step.places}
    if not looked_up:
        return ""
    try:
        announcement = store.require_announcement()
        index = ViewIndex(folder=Path(), **json.loads(read_file(announcement["views"], INDEX)))
    except ShortlistError as error:
        return f"the published features cannot be read ({error})"
    missing = sorted(looked_up - {column for view in index.views for column in view.columns})
    if not missing:
        return ""
    names = ", ".join(f"'{name}'" for name in missing[:_MAX_NAMED])
    remainder = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
    return f"the features published on {announcement['published'][:19]} have no {names}{remainder}"
