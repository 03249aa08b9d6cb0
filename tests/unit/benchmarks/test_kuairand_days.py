"""The ways in which the days of KuaiRand are learnt are ones that the shipped spec allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kuairand_days import WAYS
from shortlist.spec.load import load_spec

SPEC = Path(__file__).parents[3] / "pipelines/specs/kuairand.yaml"


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, ways in WAYS.items() for way in ways])
def test_each_way_is_a_valid_section_of_the_shipped_spec(name: str, way: str) -> None:
    shipped = load_spec(SPEC).models[name]
    changed = type(shipped).model_validate(shipped.model_dump() | WAYS[name][way])
    assert changed.model_dump().items() >= WAYS[name][way].items()
