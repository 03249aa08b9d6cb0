"""What `make bench-tuning` says of a search, and the world that it searches in."""

from __future__ import annotations

import pytest

from benchmarks.targets import below
from benchmarks.tuning import BAD, MODEL, Found, world
from shortlist.spec.tune import apply_section_changes


@pytest.mark.parametrize(("best", "missed"), [(0.7570, []), (0.7569, ["below the best possible"])])
def test_a_search_that_ends_too_far_below_the_best_possible_is_named(best: float, missed: list[str]) -> None:
    found = Found(
        bad=0.70, best=best, shipped=0.7573, from_shipped=0.7580, possible=0.76, trials=30, cpu_minutes=4.25
    )  # fmt: skip
    auc, possible, shipped, above = found.lines()
    assert below(found.lines()) == missed
    assert (auc.value, auc.peer) == (best, "bad: 0.7000; 30 trials, 4.2 processor minutes")
    assert possible.value == pytest.approx(0.76 - best, abs=1e-5)
    assert shipped.value == pytest.approx(0.7573 - best, abs=1e-5)
    assert above.value == pytest.approx(0.7580 - 0.7573, abs=1e-5)
    assert below(found._replace(from_shipped=0.7572).lines())[-1] == "from the shipped settings, above them"


def test_the_bad_settings_are_valid_ones_of_the_shipped_model_in_a_world_of_its_own() -> None:
    spec = world()
    source = spec.data.source
    assert source.kind == "generated" and (source.rows, source.users, source.taste) == (300_000, 300, 0.2)
    bad = apply_section_changes(spec.models[MODEL], BAD).model_dump()
    assert {key: bad[key] for key in BAD} == BAD
