"""Every kind of feature by the name that a spec gives it; a kind is added by a line here and a file beside this one."""

from __future__ import annotations

from typing import Final

from shortlist.features.feature_kind import FeatureKind
from shortlist.features.kinds.age import Age
from shortlist.features.kinds.count import Count
from shortlist.features.kinds.cross import Cross
from shortlist.features.kinds.current import Current
from shortlist.features.kinds.cyclic import Cyclic
from shortlist.features.kinds.hash import Hash
from shortlist.features.kinds.lag import Lag
from shortlist.features.kinds.numeric import Numeric
from shortlist.features.kinds.sequence import Sequence
from shortlist.features.kinds.sequence_score import SequenceScore
from shortlist.features.kinds.similarity import Similarity
from shortlist.features.kinds.slate import Slate
from shortlist.features.kinds.target import Target
from shortlist.features.kinds.time_since import TimeSince
from shortlist.features.kinds.training_only import TrainingOnly
from shortlist.features.kinds.vector import Vector
from shortlist.features.kinds.vocabulary import Vocabulary
from shortlist.system.registry import Registry

FEATURE_KINDS: Final = Registry[type[FeatureKind]](
    "feature_kinds",
    {
        "numeric": Numeric,
        "vocabulary": Vocabulary,
        "hash": Hash,
        "cross": Cross,
        "count": Count,
        "target": Target,
        "time_since": TimeSince,
        "lag": Lag,
        "current": Current,
        "age": Age,
        "cyclic": Cyclic,
        "vector": Vector,
        "similarity": Similarity,
        "slate": Slate,
        "sequence": Sequence,
        "sequence_score": SequenceScore,
        "training_only": TrainingOnly,
    },
)
"""In the order of messages and of the JSON Schema."""
