"""Everything a ranking model's life needs that is not a pipeline, a component, a model or a monitor."""

import gc
import os
from typing import Final

# Python searches for garbage after every 700 objects: 0.35 s of processor time of a data step, 0.06 s of it while this
# package and what it needs are imported.
gc.set_threshold(20_000, 20, 20)

# Polars' allocator keeps what is freed as memory of the process for good: a count of 20 M rows of Criteo's layout has a
# peak of 640 MiB so, and of 360 where it is returned after two seconds, in the same time. The allocator reads this when
# Polars is imported, which writes its own settings in front; processes started from here inherit all, and the last one
# of a name counts.
_ALLOCATOR_OPTIONS: Final = "dirty_decay_ms:2000,muzzy_decay_ms:0"
_settings = os.environ.get("_RJEM_MALLOC_CONF", "")
if not _settings.endswith(_ALLOCATOR_OPTIONS):
    os.environ["_RJEM_MALLOC_CONF"] = f"{_settings},{_ALLOCATOR_OPTIONS}" if _settings else _ALLOCATOR_OPTIONS

ADDRESSES: Final = {
    "model_kinds": "models.registry:MODEL_KINDS",
    "model_sections": "shortlist.ranking.registry:sections",
    "networks": "models.registry:NETWORKS",
    "feature_kinds": "shortlist.features.kinds.registry:FEATURE_KINDS",
    "feature_engines": "shortlist.features.engines.registry:FEATURE_ENGINES",
    "online_stores": "shortlist.features.online_stores.registry:ONLINE_STORES",
    "gates": "shortlist.evaluation.gates.gates:GATES",
    "sources": "shortlist.slates.retrieval.sources.registry:SOURCE_KINDS",
    "filters": "shortlist.slates.filters.rules:FILTERS",
    "ordering_rules": "shortlist.slates.ordering.rules:ORDERING_RULES",
    "diversities": "shortlist.slates.ordering.diversity:DIVERSITIES",
    "explorations": "shortlist.slates.ordering.exploration:EXPLORATIONS",
    "check_slates": "shortlist.slates.candidate_columns:check_slates",
    "check_scores": "shortlist.slates.candidate_columns:check_scores",
    "check_declared_checks": "shortlist.rollout.checks.declared:check_declared_checks",
    "object_stores": "shortlist.storage.objects:OBJECT_STORES",
    "record_stores": "shortlist.storage.records.opening:RECORD_STORES",
    "fleets": "shortlist.deployment.fleets:FLEETS",
}
"""`module:attribute` of the registries and functions that a lower layer uses, such as the kinds that a spec may name.

Imports go down only, and so do all other names of modules in texts: this package, above all of its folders, is the
single place that names them to lower layers. See `shortlist.system.registry.resolve_address`.
"""
