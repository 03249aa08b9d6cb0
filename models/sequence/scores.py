"""Training for the feature `sequence_score`, which scores an item as the next one of a session."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from models.sequence.export import export
from models.sequence.train import learn
from shortlist.contracts import DataError
from shortlist.features.counts.vocabulary import VALUE as ITEM
from shortlist.features.kinds.sequence_score import KEY, VALUE, SequenceScoreFeature
from shortlist.features.kinds.session_scores import ENCODER_FILE, ITEMS_FILE, VECTORS_FILE
from shortlist.slates.retrieval.sources.sequence import SequenceSource

_SETTING_KEYS = {"last", "embedding_dim", "blocks", "heads", "epochs", "batch_events", "sampled_negatives",
                 "learning_rate", "dropout"}  # fmt: skip


def train(section: SequenceScoreFeature, events: pl.DataFrame, seed: int, folder: Path) -> None:
    """Write the encoder, the items of the events and their vectors.

    Memory: 24 bytes per event beside the events, and three times the items' vectors.

    Args:
        section: The feature operation.
        events: Key and value of each event, by key and in order of time; a key has two or more.
        seed: Seed of the random generators.
        folder: Empty folder to write into.

    Raises:
        DataError: Training diverged.
    """
    items = events[VALUE].unique().sort()
    rows = events[VALUE].replace_strict(items, np.arange(len(items)), return_dtype=pl.Int64)
    keys = events[KEY].rank("dense").cast(pl.Int64) - 1
    settings = SequenceSource(kind="sequence", **section.model_dump(include=_SETTING_KEYS))
    sequences = learn(settings, items.to_frame(), keys.to_numpy(), rows.to_numpy(), seed)
    if not np.isfinite(sequences.item_vectors).all():
        raise DataError(f"{section.title}: training diverged: items' vectors are not finite; declare a smaller"
                        " learning_rate")  # fmt: skip
    export(sequences.encoder.double(), folder / ENCODER_FILE)
    items.alias(ITEM).to_frame().write_parquet(folder / ITEMS_FILE)
    np.save(folder / VECTORS_FILE, sequences.item_vectors)
