"""Names of the code say what they hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.code_names import (
    MEASURED,
    PRODUCT,
    attribute_docs_without_subject,
    python_files,
    read_figures,
    shared_class_names,
)


def list_places(names: list[tuple[str, int, str]]) -> str:
    return "\n".join(f"{path}:{line}: {text}" for path, line, text in names[:40])


def test_names_of_product_and_benchmarks_say_what_they_hold() -> None:
    figures = read_figures(python_files(MEASURED))
    assert figures.vague_percent <= 0.6, list_places(figures.vague)
    assert figures.vague_definitions_percent <= 0.6, list_places(figures.vague_definitions)
    assert len(figures.filler) <= 346, list_places(figures.filler)  # another empty word is no cure


def test_names_of_tests_say_what_they_hold() -> None:
    figures = read_figures(python_files(("tests",)))
    assert figures.vague_percent <= 1, list_places(figures.vague)
    assert figures.vague_definitions_percent <= 0.6, list_places(figures.vague_definitions)


def test_public_class_names_are_unique() -> None:
    assert shared_class_names(python_files(PRODUCT)) == {}


def test_descriptions_of_attributes_say_what_is_described() -> None:
    assert attribute_docs_without_subject(python_files(PRODUCT)) == []


@pytest.mark.parametrize(
    ("source", "vague"),
    [
        ("found = 1", ["found"]),
        ("def rows(kept): ...", ["kept"]),
        ("rows = [one for one in range(3)]", ["one"]),
        ("self.said = 1", ["said"]),
        ("class Columns:\n    shown: int", []),  # the field's term, as an attribute
        ("shown = 1", ["shown"]),
        ("rows_read = 1", []),
    ],
)
def test_a_vague_name_is_reported(tmp_path: Path, source: str, vague: list[str]) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert [name.text for name in read_figures([path]).vague] == vague


@pytest.mark.parametrize("source", ["def check_found(): ...", "class LetterKept: ...", "def of_what(): ..."])
def test_a_definition_that_ends_in_a_vague_word_is_reported(tmp_path: Path, source: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert len(read_figures([path]).vague_definitions) == 1
