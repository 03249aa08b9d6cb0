"""Models by the name of their kind, and models in folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shortlist.contracts import ShortlistError
from shortlist.ranking.ranker import Ranker
from shortlist.ranking.record import read_record
from shortlist.ranking.registry import kind_of
from shortlist.storage.artefacts import IntegrityError


def ranker_class(kind: str) -> type[Ranker[Any]]:
    """Return the class of a kind of model.

    Raises:
        ShortlistError: There is no such kind.
    """
    ranker: type[Ranker[Any]] = kind_of(kind).load("ranker")
    return ranker


def load_ranker(folder: Path) -> Ranker[Any]:
    """Return the model in a folder, whatever its kind.

    Raises:
        IntegrityError: A file is missing or was changed after training, or the kind is unknown.
    """
    kind = read_record(folder).kind
    try:
        ranker = ranker_class(kind)
    except ShortlistError as error:
        raise IntegrityError(f"{folder}: {error}") from None
    return ranker.load(folder)
