"""A network over embedded ids as a `Ranker`: built from a layout, trained, saved as safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
import polars as pl
from safetensors.torch import load_file, save_file

from models.embedding.network.embedding_model import EmbeddingModel
from models.embedding.reading.chunks import Chunk
from models.embedding.reading.layout import Layout
from models.embedding.table.admission import BucketAdmission
from models.embedding.training.network_fit import SCORING_ROWS, WEIGHTS, ChampionNetwork, NetworkFit
from models.embedding.training.train import batch_log_odds, join_arrays
from models.embedding.training.unknown_ids import average_unknown_ids
from models.embedding_section import EmbeddingSection
from models.objectives import check_lists, learning_lists, list_column
from shortlist.contracts import label_column
from shortlist.ranking.inputs import LearningTable, TableFeature, features_matching
from shortlist.ranking.ranker import FitOutcome, IncompatibleModelError, OnEpoch, Ranker
from shortlist.ranking.record import TrainedModel, read_record
from shortlist.ranking.validation import probabilities
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import IntegrityError
from shortlist.storage.tables import DayTable

SectionT = TypeVar("SectionT", bound=EmbeddingSection)


class EmbeddingRanker(Ranker[SectionT]):
    """A network over embedded ids; a kind sets `section_type` and `model_type`."""

    model_type: ClassVar[type[EmbeddingModel]]
    shares_body = True
    _model: EmbeddingModel
    _layout: Layout
    _device: str = "cpu"
    _admission: BucketAdmission | None = None

    @classmethod
    def check_previous_model(cls, previous_model: TrainedModel, section: SectionT) -> None:
        """Refuse an earlier model of other further labels, whose weights may have the same shape."""
        if previous_model.labels != section.labels:
            raise IncompatibleModelError(
                f"models.{previous_model.name}.labels: the earlier heads are of {list(previous_model.labels)}, the"
                f" spec now says {list(section.labels)}"
            )

    def _make_layout(self, features: tuple[TableFeature, ...], labels: tuple[str, ...] = ()) -> Layout:
        """Return the layout of features and further labels."""
        return Layout.from_features(features, labels)

    def _learning(self, table: DayTable) -> LearningTable:
        features = features_matching(table, self.section.reads)
        return learning_lists(table, features, self.section, tuple(map(label_column, self.section.labels)))

    def _fit(self, learning: LearningTable, runtime: Runtime, on_epoch: OnEpoch, champion: Path | None) -> FitOutcome:
        self._layout = self._make_layout(learning.features, self.section.labels)
        if list_column(learning.columns) is not None:
            check_lists(learning, self.section, self.name)
        section = self._warm_start_section(champion)
        fit = NetworkFit(self.model_type, self._layout, section, learning, runtime, self.name)
        history, best = fit.run(on_epoch, None if champion is None else self._champion_network(champion))
        self._model, self._admission, self._device = fit.model, fit.admission, fit.device
        average_unknown_ids(self._model, self._layout, learning, self._predict)
        held_out, further = None, {}
        if self.section.refit:
            held_out, further = self._score_held_out(learning), self._score_held_out_further(learning)
            fit.refit(best)
            self._model, self._admission = fit.model, fit.admission
            average_unknown_ids(self._model, self._layout, learning, self._predict)
        passes = len(history) + (best if self.section.refit else 0)
        return FitOutcome(
            tuple(history), passes=passes, held_out=held_out, held_out_further=further, best=best, epochs=len(history),
            hashed={} if self._admission is None else self._admission.hash_collisions(),
            cached_rows=fit.cached_rows,
        )  # fmt: skip

    def _warm_start_section(self, champion: Path | None) -> SectionT:
        """Return the section, with `retrain_epochs` as its epochs in a warm start."""
        epochs = self.section.retrain_epochs if champion and self.section.retrain == "warm" else None
        return self.section.model_copy(update={"epochs": epochs}) if epochs else self.section

    def _champion_network(self, champion: Path) -> ChampionNetwork:
        return ChampionNetwork(champion, self._make_layout(read_record(champion).features))

    def _predict(self, frame: pl.DataFrame) -> np.ndarray:
        return probabilities(self._log_odds(frame))

    def _log_odds(self, frame: pl.DataFrame) -> np.ndarray:
        log_odds = self._all_log_odds(frame)
        return log_odds[:, 0] if log_odds.ndim == 2 else log_odds

    def _further_log_odds(self, frame: pl.DataFrame) -> dict[str, np.ndarray]:
        if not self.section.labels:
            return {}
        return dict(zip(self.section.labels, self._all_log_odds(frame).T[1:], strict=True))

    def _all_log_odds(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the log-odds of rows, shape (rows,); (rows, H) with further labels."""
        chunk = Chunk.decoded(frame.select(feature.name for feature in self.features), self._layout)
        edges = range(0, chunk.rows, SCORING_ROWS)
        batches = (chunk.batch(first, min(first + SCORING_ROWS, chunk.rows)) for first in edges)
        log_odds = (batch_log_odds(self._model, batch.to(self._device)) for batch in batches)
        return join_arrays(log_odds, chunk.rows)

    def _write(self, folder: Path) -> None:
        save_file({name: tensor.cpu() for name, tensor in self._model.state_dict().items()}, folder / WEIGHTS)
        if self._admission is not None:
            self._admission.save(folder)

    def _read(self, folder: Path) -> None:
        self._layout = self._make_layout(self.record.features)
        self._model = self.model_type(self._layout, self.section)
        try:
            self._model.load_state_dict(load_file(folder / WEIGHTS))
        except RuntimeError as error:
            raise IntegrityError(f"{folder / WEIGHTS}: does not fit model.json: {error}") from None
