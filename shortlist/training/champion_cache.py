"""Detects that a run repeats the run that made the champion, whose verdict is then reused from the cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from shortlist.tracking.run_context import RunContext
from shortlist.training.run_baseline import RunBaseline

_MADE_FROM: Final = "made_from"
_JUDGED_AGAINST: Final = "judged_against"
_NO_CHAMPION: Final = "none"


class ChampionCacheKey(NamedTuple):
    """The champion that a run is judged against, and the digest that identifies equal runs."""

    version: str
    """Registered version; empty: there is no champion yet."""
    made_from: str
    """Digest of all inputs of the verdict; empty where they are not known beforehand."""

    def tags(self) -> dict[str, str]:
        """Return the tags of the registered version, which `champion_cache_key` reads."""
        return {_MADE_FROM: self.made_from, _JUDGED_AGAINST: self.version or _NO_CHAMPION} if self.made_from else {}


def champion_cache_key(context: RunContext, baseline: RunBaseline, declared: Sequence[str]) -> ChampionCacheKey:
    """Return the champion that a run is judged against, unless the run repeats the one that made the champion.

    The first run of a spec is judged without a champion, and makes one. An unchanged second run would score the
    champion, judge it against itself and register it again. So a run with the same inputs as the champion's run gets
    the same parameters as that run, and finds its results in the cache. The cache holds only for the same files:
    `score_champion` depends on the candidates' files, and scores the current champion whenever it runs.

    Args:
        context: Spec, stores, log and cause.
        baseline: The baseline of the run.
        declared: All other inputs of the verdict: sections, code, location of the log.
    """
    made_from = _digest(context, baseline, declared)
    if not baseline.version:
        return ChampionCacheKey("", made_from)
    tags = context.tracker.registry.tags_of(int(baseline.version))
    if not made_from or tags.get(_MADE_FROM) != made_from:
        return ChampionCacheKey(baseline.version, made_from)
    judged_against = tags[_JUDGED_AGAINST]
    return ChampionCacheKey("" if judged_against == _NO_CHAMPION else judged_against, made_from)


def _digest(context: RunContext, baseline: RunBaseline, declared: Sequence[str]) -> str:
    if not context.input_digest:  # the run reads the current log, which is never known to be the same
        return ""
    previous_models = {
        "models": [model.model_dump(exclude={"cluster"}) for model in baseline.models],
        "previous": baseline.previous,
    }
    inputs = [context.model_dump(mode="json"), previous_models, *declared]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]
