"""Whether a run repeats the one that made the champion: then that run's verdict stands."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from shortlist.training.run_baseline import RunBaseline
from shortlist.training.training import RunContext

_MADE_FROM: Final = "made_from"
_JUDGED_AGAINST: Final = "judged_against"
_NOBODY: Final = "none"


class ChampionCacheKey(NamedTuple):
    """Against whom a run is judged, and what says that another run is the same."""

    version: str
    """Registered version; empty: there is no champion yet."""
    made_from: str
    """Digest of everything that leads to the verdict; empty where that is not known beforehand."""

    def tags(self) -> dict[str, str]:
        """Return what the registered version is told, so that `standing_of` finds it."""
        return {_MADE_FROM: self.made_from, _JUDGED_AGAINST: self.version or _NOBODY} if self.made_from else {}


def champion_cache_key(context: RunContext, found: RunBaseline, declared: Sequence[str]) -> ChampionCacheKey:
    """Return against whom a run is judged: the champion, unless the champion is what this very run makes.

    The first run of a spec is judged when there is no champion, and makes one. Were the second, with nothing changed,
    told of it, the champion would be scored, judged against itself and registered as what it is already. So a run that
    is made from what the champion was made from is told what that run was told, and finds its results in the cache.
    The cache answers for the same files only: `score_champion` hangs on the candidates' files, and whenever it does
    run, it scores who serves then.

    Args:
        context: Spec, stores, log and cause.
        found: What the run builds on.
        declared: Everything else that leads to the verdict: sections, code, place of the log.
    """
    made_from = _digest(context, found, declared)
    if not found.version:
        return ChampionCacheKey("", made_from)
    tags = context.tracker.registry.tags_of(int(found.version))
    if not made_from or tags.get(_MADE_FROM) != made_from:
        return ChampionCacheKey(found.version, made_from)
    before = tags[_JUDGED_AGAINST]
    return ChampionCacheKey("" if before == _NOBODY else before, made_from)


def _digest(context: RunContext, found: RunBaseline, declared: Sequence[str]) -> str:
    if not context.input_digest:  # the run itself reads the log as it is then: never known to be the same
        return ""
    earlier = {"models": [one.model_dump(exclude={"cluster"}) for one in found.models], "previous": found.previous}
    said = [context.model_dump(mode="json"), earlier, *declared]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
