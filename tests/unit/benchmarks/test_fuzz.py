"""Short forms of the benchmarks `fuzz_specs` and `fuzz_logs`: a message or a result, never a traceback."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import polars as pl
import pytest

from benchmarks import fuzz_logs, fuzz_specs
from shortlist.spec.load import SpecError, load_spec, parse_spec
from shortlist.spec.models import model_sections
from shortlist.spec.spec import Spec

pytestmark = pytest.mark.long

MINIMAL = Path(__file__).parents[3] / "tests/specs/valid/minimal.yaml"


@pytest.mark.parametrize("number", range(len(fuzz_specs.SEEDS)))
def test_what_once_gave_a_traceback_gives_a_message(number: int) -> None:
    assert fuzz_specs.check(fuzz_specs.SEEDS[number]) == ""


def test_changed_specs_are_read_or_refused() -> None:
    tried, failures, _ = fuzz_specs.run(len(fuzz_specs.SEEDS) + 60, seed=11)
    assert (tried, failures) == (len(fuzz_specs.SEEDS) + 60, [])


@pytest.mark.parametrize("key", ["", ", key: []"])
def test_a_name_for_every_key_needs_a_key(key: str) -> None:
    """It once was a feature of that very name, which its canonical JSON did not have."""
    added = f'  columns:\n    - {{kind: count, name: "{{key}}_seen"{key}}}\n'
    text = MINIMAL.read_text().replace("  columns:\n    - {kind", added + "    - {kind")
    with pytest.raises(SpecError, match=r"'\{key\}_seen': \{key\} stands for a column of `key`, which names none"):
        parse_spec(text)


def test_drawn_sections_reach_every_section_and_some_of_them_are_read() -> None:
    grammar = fuzz_specs.Grammar(random.Random(2))
    assert set(grammar.sections) == set(Spec.model_fields) - {"version", "name"}
    drawn = [grammar.section("models", []) for _ in range(300)]
    assert {model["kind"] for models in drawn for model in models.values()} == set(model_sections())
    texts = list(islice(fuzz_specs.cases(2_000, seed=3), len(fuzz_specs.SEEDS), None, 20))
    assert sum(map(fuzz_specs.is_read, texts)) >= len(texts) // 20


def test_a_section_that_breaks_its_reader_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(fuzz_specs, "canonical_json", broken)
    assert "ZeroDivisionError" in fuzz_specs.check(MINIMAL.read_text())


def test_strange_logs_are_read_or_refused() -> None:
    """Every tenth: all types of Parquet columns, each in another place, and some of every other kind of file."""
    logs = list(islice(fuzz_logs.cases(550, seed=11), 0, None, 10))
    assert {log.description: problem for log in logs if (problem := fuzz_logs.check(log))} == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{a: 1}: 2", "a key must be text (got {'a': 1}); put it in quotes"),
        ("when: !!timestamp x", "tag 'tag:yaml.org,2002:timestamp' is not allowed; write a plain value"),
        ("when: !!int x", "'x' is not a value of its type"),
        ("seed: " + "9" * 5_000, "is not a value of its type"),
        ("seed: " + "9" * 30, "integers have at most 64 bits"),
        ("[" * 3_000, "more than 50 levels of nesting"),
        ("a: &a [*a]", "a value that contains itself"),
        ('name: "\\ud800"', "a text with a NUL or half a surrogate pair"),
        ("a: .inf", "numbers are finite (got .inf)"),
    ],
)
def test_what_no_spec_can_hold_is_named_with_its_place(text: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    assert said in str(caught.value)
    assert "line 1, column" in str(caught.value)


def test_a_date_that_does_not_exist_is_named(tmp_path: Path) -> None:
    text = MINIMAL.read_text().replace("{kind: files, path: log.csv}", "{kind: generated, start: 2026-02-30}")
    with pytest.raises(SpecError, match=r"data\.source\.generated\.start: .*\(got '2026-02-30'\)"):
        parse_spec(text)
    assert load_spec(MINIMAL, ["data.clock.earliest=2026-01-05"]).data.clock.model_dump()["earliest"].day == 5


def test_a_column_of_a_type_that_nothing_is_made_of_is_named() -> None:
    log = next(log for log in fuzz_logs.cases(400, seed=1) if log.description == "parquet: price is duration")
    frame = pl.read_parquet(log.data)
    assert frame["price"].dtype == pl.Duration("us")
    with pytest.raises(fuzz_logs.ShortlistError, match=r"log\.parquet: column 'price' is duration\[us\]; wanted"):
        fuzz_logs.take(log)
