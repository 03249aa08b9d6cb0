"""Whatever is written into a spec or lies in a log ends with rows or a message, never with a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import Phase, find, given, settings
from pydantic import BaseModel

from shortlist.contracts import ShortlistError
from shortlist.spec.load import SpecError, canonical_json, digest, load_spec, parse_spec
from shortlist.spec.models import model_sections
from shortlist.spec.spec import Spec
from tests.fuzz import logs, specs

pytestmark = pytest.mark.long

MINIMAL = Path(__file__).parents[2] / "tests/specs/valid/minimal.yaml"
SPECS = {
    "values": specs.specs_with_changed_values(),
    "sections": specs.specs_with_drawn_sections(),
    "text": specs.specs_with_changed_text(),
}
LOGS = {
    "parquet": logs.parquet_logs(),
    "json lines": logs.json_logs(),
    "delimited": logs.delimited_logs(),
    "changed bytes": logs.logs_with_changed_bytes(),
    "side table": logs.side_table_logs(),
}


def sections_of(spec: Spec) -> Iterator[BaseModel]:
    """Give a spec, its sections, and those that have names of their own."""
    yield spec
    for value in (getattr(spec, name) for name in Spec.model_fields):
        yield from value.values() if isinstance(value, Mapping) else (value,) if isinstance(value, BaseModel) else ()


def check_spec(text: str) -> None:
    """A text is refused with a message that can be printed, or equals the spec that its canonical JSON is."""
    try:
        spec = parse_spec(text)
    except SpecError as error:
        assert 0 < len(str(error).encode()) < 100_000
        return
    for section in sections_of(spec):
        json.loads(canonical_json(section))
        digest(section)
    assert parse_spec(canonical_json(spec)) == spec


def check_log(log: logs.Log) -> None:
    """A log is read, or refused with a message."""
    try:
        logs.ingest_and_validate(log)
    except ShortlistError as error:
        assert 0 < len(str(error)) < 20_000


@pytest.mark.parametrize("text", specs.EARLIER_FAILURES)
def test_what_once_gave_a_traceback_gives_a_message(text: str) -> None:
    check_spec(text)


@pytest.mark.parametrize("kind", SPECS)
def test_a_spec_is_read_or_refused(kind: str) -> None:
    given(SPECS[kind])(check_spec)()


@pytest.mark.parametrize("kind", LOGS)
def test_a_log_is_read_or_refused(kind: str) -> None:
    given(LOGS[kind])(check_log)()


@pytest.mark.parametrize("kind", logs.ARROW_COLUMNS)
@pytest.mark.parametrize("column", ["user_id", "price", "made", "words", "time"])
def test_a_column_of_any_type_is_read_or_refused(column: str, kind: str) -> None:
    check_log(logs.Log("log.parquet", logs.parquet({column: logs.ARROW_COLUMNS[kind]})))


@pytest.mark.parametrize("key", ["", ", key: []"])
def test_a_name_for_every_key_needs_a_key(key: str) -> None:
    """It once was a feature of that very name, which its canonical JSON did not have."""
    added = f'  columns:\n    - {{kind: count, name: "{{key}}_seen"{key}}}\n'
    text = MINIMAL.read_text().replace("  columns:\n    - {kind", added + "    - {kind")
    with pytest.raises(SpecError, match=r"'\{key\}_seen': \{key\} stands for a column of `key`, which names none"):
        parse_spec(text)


@pytest.mark.parametrize("kind", model_sections())
def test_drawn_sections_reach_every_kind_of_model(kind: str) -> None:
    from schemathesis import GenerationMode  # takes a second to import

    models = specs.section("models", (GenerationMode.POSITIVE,))
    find(
        models,
        lambda drawn: any(isinstance(model, dict) and model.get("kind") == kind for model in drawn.values()),
        settings=settings(max_examples=2_000, database=None, phases=[Phase.generate]),
    )


def test_some_drawn_specs_are_valid() -> None:
    find(SPECS["sections"], specs.is_valid, settings=settings(max_examples=200, database=None, phases=[Phase.generate]))


def test_a_section_that_breaks_its_reader_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setitem(globals(), "canonical_json", broken)
    with pytest.raises(ZeroDivisionError):
        check_spec(MINIMAL.read_text())


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


def test_a_column_of_a_type_that_no_feature_is_made_of_is_named() -> None:
    log = logs.Log("log.parquet", logs.parquet({"price": pa.array([1] * logs.ROWS, pa.duration("us"))}))
    with pytest.raises(ShortlistError, match=r"log\.parquet: column 'price' is duration\[us\]; wanted"):
        logs.ingest_and_validate(log)
