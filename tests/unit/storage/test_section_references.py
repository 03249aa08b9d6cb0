from __future__ import annotations

from pathlib import Path

import pytest

from shortlist.contracts import ShortlistError
from shortlist.storage.artefacts import IntegrityError
from shortlist.storage.objects import ObjectStore
from shortlist.storage.section_references import is_reference, read_sections, store_section

SECTION = '{"columns":[' + ",".join(f'"column {number}"' for number in range(100)) + "]}"


@pytest.fixture
def reference(tmp_path: Path) -> str:
    return store_section(SECTION, ObjectStore.in_folder(tmp_path))


def test_a_section_is_read_by_its_reference(reference: str) -> None:
    assert is_reference(reference) and len(reference) < len(SECTION) / 4
    read = read_sections({"data": reference, "name": "demo", "slices": ["surface"]})
    assert read == {"data": SECTION, "name": "demo", "slices": ["surface"]}


def test_equal_sections_have_equal_references_and_different_sections_different_references(
    reference: str, tmp_path: Path
) -> None:
    store = ObjectStore.in_folder(tmp_path)
    assert store_section(SECTION, store) == reference
    assert store_section(SECTION.replace("99", "100"), store) != reference


@pytest.mark.parametrize("text", ["", '{"kind":"popular"}'])
def test_a_short_section_is_not_stored(text: str, tmp_path: Path) -> None:
    assert store_section(text, ObjectStore.in_folder(tmp_path)) == text
    assert not any(tmp_path.iterdir())


def test_a_missing_section_is_named(reference: str, tmp_path: Path) -> None:
    next((tmp_path / "sections").iterdir()).unlink()
    with pytest.raises(ShortlistError, match=r"sections/\w+\.json: this section of the spec is missing; run again"):
        read_sections({"data": reference})


def test_a_changed_section_is_refused(reference: str, tmp_path: Path) -> None:
    next((tmp_path / "sections").iterdir()).write_text("{}")
    with pytest.raises(IntegrityError, match="not the section that was stored"):
        read_sections({"data": reference})
