"""What a run builds on: the serving version, per kind the model to go on from, the earlier features."""

from __future__ import annotations

from typing import NamedTuple

from models.continuing import find_earlier
from models.training import Origin
from shortlist.config.models import DLRMModel, XGBoostModel
from shortlist.features.earlier import NEWEST, newest_fit
from shortlist.features.place import place_in
from shortlist.identity import claim
from shortlist.stores import Stores
from shortlist.tracking.steps import note


class Foundations(NamedTuple):
    """What there is before a run, as its steps are told it; empty where there is nothing."""

    version: str
    """Registered version that serves now."""
    xgboost: str
    """MLflow run of the model to go on from."""
    dlrm: str
    """Likewise."""
    previous: str
    """Path or address of the earlier fitted features."""


def find_foundations(origin: Origin, xgboost: str, dlrm: str, previous: str) -> Foundations:
    """Return what a run builds on; tell the user what is wanted and not there.

    Args:
        origin: Spec, stores, log and cause.
        xgboost: The model's section as JSON; empty when it is not declared.
        dlrm: Likewise.
        previous: Path of the earlier features; `newest` for those that the store was last filled from; empty: none.

    Raises:
        ShortlistError: A store cannot be reached, or belongs to another cluster: said before anything is written.
    """
    claim(Stores.parse(origin.stores))
    tracker, log = origin.tracker, (origin.input_digest, origin.cause.until)
    trees = XGBoostModel.model_validate_json(xgboost) if xgboost else None
    network = DLRMModel.model_validate_json(dlrm) if dlrm else None
    if previous == NEWEST:
        previous = newest_fit(place_in(Stores.parse(origin.stores), origin.name))
        if not previous:
            note("Every day is counted: there are no earlier features yet.")
    return Foundations(
        version=str(tracker.registry.version_of("champion") or ""),
        xgboost=find_earlier("xgboost", trees, tracker, *log),
        dlrm=find_earlier("dlrm", network, tracker, *log),
        previous=previous,
    )
