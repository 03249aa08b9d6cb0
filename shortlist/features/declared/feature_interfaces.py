"""Optional interfaces of kinds of features; a kind inherits from those that it needs, beside `FeatureKind`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shortlist.features.counts.vocabulary import VocabularyLimits
from shortlist.features.declared.feature_kind import FeatureKind, Fitted, StandardisedNumber
from shortlist.features.declared.graph import Graph
from shortlist.features.declared.joined_lists import JoinedList
from shortlist.features.declared.slates import SlateValue
from shortlist.features.declared.static_view_plan import MeanView
from shortlist.features.declared.training_log import TrainingLog
from shortlist.features.live.open_events import OpenList
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.derived_columns import DerivedColumn
from shortlist.spec.features import CandidateComparison

ID_FORMS: Final = ("id", "ids")
"""Forms of outputs that are ids; see `OutputForm`."""


@dataclass(frozen=True)
class DeclaredIds:
    """How many ids a feature has, as far as its declaration determines."""

    max_ids: int
    """Most ids, 0 among them."""
    counted_column: str = ""
    """Column whose distinct values say how many there are; empty: there are exactly `max_ids`."""
    per_row: int | None = 1
    """Most ids of a row; None: unknown."""


class IdOutputs(ABC):
    """Outputs of form `id` or `ids`. Implemented by kinds that give a model ids of embeddings."""

    def vocabularies(self, declared: DeclaredColumns) -> Iterable[VocabularyLimits]:
        """Return the columns whose values get ids by a vocabulary."""
        return ()

    @abstractmethod
    def id_count(self, output: int, fitted: Fitted) -> int:
        """Return how many ids an output has, 0 among them."""

    @abstractmethod
    def declared_ids(self, output: int, declared: DeclaredColumns) -> DeclaredIds:
        """Return how many ids an output will have, before any fit."""

    def list_nodes(self, graph: Graph, fitted: Fitted, output: int) -> tuple[str, str]:
        """Compile an output of form `ids`; return ids, shape (rows, longest), and a BOOL mask of their positions."""
        raise NotImplementedError


class VectorOutputs(ABC):
    """Outputs of form `vector`. Implemented by kinds that give a model several numbers as one column."""

    @abstractmethod
    def width(self, output: int, fitted: Fitted) -> int:
        """Return the width of a vector."""

    @abstractmethod
    def vector_nodes(self, graph: Graph, fitted: Fitted, output: int) -> str:
        """Compile a vector; return it as FP32, shape (rows, width)."""


class StandardisedFeature(ABC):
    """A feature that needs means and deviations. Implemented by kinds that standardise numbers."""

    @abstractmethod
    def standardised_numbers(self, declared: DeclaredColumns) -> Iterable[StandardisedNumber]:
        """Return the numbers whose mean and deviation on the training days are counted."""


class MeanVectorFeature(ABC):
    """A feature of the mean vector of a user's items. Implemented by kinds that compare items with a history."""

    @abstractmethod
    def mean_views(self, declared: DeclaredColumns) -> Iterable[MeanView]:
        """Return the mean vectors of users' lists that the feature looks up.

        Raises:
            PlanError: A list cannot hold item keys.
        """


class EventListFeature(ABC):
    """A feature of a list of events. Implemented by kinds that read the newest events of a key, such as a session."""

    def max_events(self, output: int) -> int | None:
        """Return the most entries of a list in order of time, the newest first; None for other outputs."""
        return None

    @abstractmethod
    def open_list(self, declared: DeclaredColumns) -> OpenList | None:
        """Return the list of events of the open tiles; None where the feature reads complete tiles only."""

    @abstractmethod
    def joined_list(self, declared: DeclaredColumns) -> JoinedList | None:
        """Return the list that is joined after the look-up; None where the view holds the whole list."""


class SlateComparison(CandidateComparison):
    """A feature that compares the candidates of a request. Implemented by kinds that read the whole slate."""

    @abstractmethod
    def slate_value(self, declared: DeclaredColumns, features: Sequence[FeatureKind]) -> SlateValue:
        """Return the number that is compared among the rows of a request.

        Args:
            declared: The declared columns.
            features: All declared features.

        Raises:
            PlanError: The number cannot be compared.
        """


class TrainedFeature(ABC):
    """A feature with a model of its own. Implemented by kinds that train on the log while features are fitted."""

    @abstractmethod
    def train(self, training_log: TrainingLog, folder: Path) -> None:
        """Train on the log and write the models into an empty folder.

        Raises:
            DataError: There is nothing to train on.
        """

    @abstractmethod
    def load_trained(self, folder: Path) -> Any:
        """Return the models that `train` wrote; `Fitted.trained` holds them."""


class SinglePrecisionNodes:
    """A feature whose nodes return FP32. Inherited by kinds of dense features that compute on FP32 vectors."""


class DerivingFeature(ABC):
    """A feature of values that no graph can read. Implemented by kinds that look inside texts.

    The derived columns are computed outside of the graph: those of a side table once, when its view is written; those
    of the log for every row, in the table and in the server.
    """

    @abstractmethod
    def derived_columns(self) -> Iterable[DerivedColumn]:
        """Return the columns that are derived for the feature."""


def declared_ids(feature: FeatureKind, output: int, declared: DeclaredColumns) -> DeclaredIds | None:
    """Return how many ids an output will have, before any fit; None for outputs of other forms."""
    if not isinstance(feature, IdOutputs) or feature.forms(declared)[output] not in ID_FORMS:
        return None
    return feature.declared_ids(output, declared)
