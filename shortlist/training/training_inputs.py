"""All inputs of one training, read once; checkpoint and lineage are named by their digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

from shortlist.contracts import Files
from shortlist.ranking.checkpoints import CheckpointLocation
from shortlist.ranking.kind import DeclaredModel
from shortlist.ranking.ranker import MemberFiles
from shortlist.ranking.registry import kind_of
from shortlist.spec.models import ModelSection
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import digest_of_files, file_digests
from shortlist.storage.objects import open_object_store
from shortlist.storage.storage_config import StorageConfig
from shortlist.storage.tables import DayTable
from shortlist.tracking.run_context import RunContext


class TrainingInputs(NamedTuple):
    """The declared model, the context of the run, and the feature table and fitted features of a log."""

    model: DeclaredModel
    section: ModelSection
    """The model's section of the spec."""
    runtime: Runtime
    context: RunContext
    table: DayTable
    fitted: Path
    """Folder of the fitted features."""
    table_files: Mapping[str, str]
    """SHA-256 of the table's files by relative path."""
    members: Mapping[str, MemberFiles]
    """Files of an ensemble's members, by name."""
    started: datetime
    """When the training began."""

    @classmethod
    def read(
        cls, model: DeclaredModel, runtime: Runtime, context: RunContext, fitted: Path, table: Path,
        members: Mapping[str, MemberFiles] = MappingProxyType({}),
    ) -> Self:  # fmt: skip
        """Return the inputs of a training that begins now."""
        section = kind_of(model.kind).section.model_validate(model.section)
        started = datetime.now(UTC)
        day_table = DayTable.open(table, Files.TABLE)
        return cls(model, section, runtime, context, day_table, fitted, file_digests(table), members, started)

    @property
    def table_digest(self) -> str:
        """One digest of the table."""
        return digest_of_files(self.table_files)

    def checkpoint_location(self, previous_run: str) -> CheckpointLocation:
        """Return the location of this training's checkpoint, which a retried step finds by a digest of its inputs.

        Args:
            previous_run: MLflow run of the model to continue training from; empty: from scratch.
        """
        inputs = [
            self.model.kind,
            self.section.model_dump_json(),
            self.runtime.seed,
            self.runtime.engine,
            self.table_digest,
            self.context.code,
            previous_run,
        ]
        name = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]
        return CheckpointLocation(
            open_object_store(StorageConfig.parse(self.context.stores)),
            f"checkpoints/{self.context.name}/{name}.safetensors",
        )
