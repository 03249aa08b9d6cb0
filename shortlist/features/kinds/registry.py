"""Every kind of feature by its name in a spec; to add a kind, add a file beside this one and a line here."""

from __future__ import annotations

from typing import Final

from shortlist.features.declared.feature_kind import FeatureKind
from shortlist.features.kinds.age import AgeFeature
from shortlist.features.kinds.count import CountFeature
from shortlist.features.kinds.cross import CrossFeature
from shortlist.features.kinds.current import CurrentCountFeature
from shortlist.features.kinds.cyclic import CyclicFeature
from shortlist.features.kinds.expression import ExpressionFeature
from shortlist.features.kinds.hash import HashFeature
from shortlist.features.kinds.lag import LagFeature
from shortlist.features.kinds.numeric import NumericFeature
from shortlist.features.kinds.sequence import SequenceFeature
from shortlist.features.kinds.sequence_score import SequenceScoreFeature
from shortlist.features.kinds.similarity import SimilarityFeature
from shortlist.features.kinds.slate import SlateFeature
from shortlist.features.kinds.target import TargetFeature
from shortlist.features.kinds.time_since import TimeSinceFeature
from shortlist.features.kinds.training_only_feature import TrainingOnlyFeature
from shortlist.features.kinds.vector import VectorFeature
from shortlist.features.kinds.vocabulary import VocabularyFeature
from shortlist.system.registry import Registry

FEATURE_KINDS: Final = Registry[type[FeatureKind]](
    "feature_kinds",
    {
        "numeric": NumericFeature,
        "vocabulary": VocabularyFeature,
        "hash": HashFeature,
        "cross": CrossFeature,
        "count": CountFeature,
        "target": TargetFeature,
        "time_since": TimeSinceFeature,
        "lag": LagFeature,
        "current": CurrentCountFeature,
        "age": AgeFeature,
        "cyclic": CyclicFeature,
        "vector": VectorFeature,
        "similarity": SimilarityFeature,
        "expression": ExpressionFeature,
        "slate": SlateFeature,
        "sequence": SequenceFeature,
        "sequence_score": SequenceScoreFeature,
        "training_only": TrainingOnlyFeature,
    },
)
"""In the order of messages and of the JSON Schema."""
