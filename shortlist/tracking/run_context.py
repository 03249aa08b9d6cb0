"""The context of a run: spec, stores, log and cause, as the graph's parameters give them to every step."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from shortlist.storage.storage_config import StorageConfig
from shortlist.tracking.lineage import TrainingTrigger
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.store_access import tracking_location


class RunContext(BaseModel):
    """Spec, stores, log and cause of a run, from the graph's parameters."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Name of the spec."""
    stores: str
    """Stores that outlive a run; see `shortlist.storage.storage_config`."""
    input_digest: str = ""
    """Digest of the raw log."""
    code: str = ""
    """Version of this package's code."""
    gate_code: str = ""
    """Version of the project's gates; see `gate_code_version`."""
    cause: TrainingTrigger = TrainingTrigger()
    """Trigger of the run."""

    @property
    def tracker(self) -> Tracker:
        """The spec's MLflow store."""
        place = tracking_location(StorageConfig.parse(self.stores), self.name)
        return Tracker(place.uri, self.name, place.files)
