"""What docstrings and pages refer to exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.code_names import python_files
from tests.code_references import DESCRIBED, ROOT, docstring_references, exists, page_references, pages


def test_what_docstrings_refer_to_exists() -> None:
    stale = [reference for path in python_files(DESCRIBED) for reference in docstring_references(path)]
    assert stale == []


def test_what_pages_refer_to_exists() -> None:
    assert [reference for path in pages() for reference in page_references(path)] == []


@pytest.mark.parametrize(
    ("description", "stale"),
    [
        ("Return `rows_of_yesterday_evening`.", ["rows_of_yesterday_evening"]),
        ("Return what `shortlist.data.no_such_module.read` reads.", ["shortlist.data.no_such_module.read"]),
        ("See `docs/no-such-page.md`.", ["docs/no-such-page.md"]),
        ("Check it.\n\n    Raises:\n        NoSuchMisfitError: It does not fit.\n    ", ["Raises: NoSuchMisfitError"]),
        ("Run `make no-such-target`.", ["make no-such-target"]),
        ("Return `polars.DataFrame` of `Columns.USER`, at most `10 %`, in `docs/spec.md`.", []),
        ("Check it.\n\n    Raises:\n        ValueError: It does not fit.\n        SpecError: Nor this.\n    ", []),
    ],
)
def test_a_stale_name_is_reported(tmp_path: Path, description: str, stale: list[str]) -> None:
    path = tmp_path / "module.py"
    path.write_text(f'"""A module."""\n\n\ndef f():\n    """{description}"""\n')
    assert [reference.text for reference in docstring_references(path)] == stale


@pytest.mark.parametrize(
    "text", ["gates.min_auc", "SHORTLIST_TRITON_VENV", "--data", "deploy/docker", "kfp.dsl", "0.05"]
)
def test_existing_names_are_accepted(text: str) -> None:
    assert exists(text, ROOT / "README.md")
