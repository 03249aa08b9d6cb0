"""Every HTML page in a real browser, before and after the use of its controls; `make test-pages` runs it.

Checked are axe's rules, the width of the page and the keyboard's focus. Evidently's pages of drift and quality are
among the pages; no rule is left out for any.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MODULES = ROOT / ".venv-pages"
PAGES = sorted((ROOT / "build/pages").glob("*.html"))
BROWSERS = "chromium", "chromium-browser", "google-chrome"
VISITS_PER_PAGE = 4
"""Visits per page: wide and narrow, light and dark."""

pytestmark = pytest.mark.browser


def checked(pages: list[Path]) -> list[dict[str, Any]]:
    """Return what a browser finds on pages; skip the test where there is none."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    node = shutil.which("node")
    if browser is None or node is None:
        pytest.skip(f"needs node and one of {', '.join(BROWSERS)} (Debian: nodejs, npm, chromium)")
    if not (MODULES / "node_modules/axe-core").is_dir():
        pytest.skip("needs axe-core and playwright-core, which make test-pages installs by npm")
    script = Path(__file__).with_name("check.mjs")
    process = subprocess.run([node, script, MODULES, browser, *pages], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    lines: list[dict[str, Any]] = json.loads(process.stdout)
    return lines


@pytest.fixture(scope="module")
def findings() -> list[dict[str, Any]]:
    """Return the problems and visits of the pages in build/pages."""
    if not PAGES:
        pytest.skip("there are no pages in build/pages; make test-pages writes them")
    return checked(PAGES)


@pytest.mark.parametrize("kind", ["axe", "overflow", "focus", "script"])
def test_no_page_has_a_problem(kind: str, findings: list[dict[str, Any]]) -> None:
    problems = [
        f"{Path(finding['page']).name} {finding['width']} px {finding['scheme']}: {finding['text']}"
        for finding in findings
        if finding["kind"] == kind
    ]
    assert not problems, "\n".join(problems)


def test_every_page_was_visited_in_all_settings_and_has_focusable_elements(findings: list[dict[str, Any]]) -> None:
    visited = [finding for finding in findings if finding["kind"] == "visited"]
    assert len(visited) == VISITS_PER_PAGE * len(PAGES)
    assert all(int(visit["text"].split()[0]) > 0 for visit in visited)


def test_evidently_pages_are_visited_with_their_controls(findings: list[dict[str, Any]]) -> None:
    controls = {
        Path(finding["page"]).stem: int(finding["text"].split()[1])
        for finding in findings
        if finding["kind"] == "visited"
    }
    assert controls["evidently-drift"] >= 5  # theme, order of rows, details, their tabs, rows per page
    assert controls["evidently-quality"] >= 1


def test_every_kind_of_problem_of_a_page_is_reported(tmp_path: Path) -> None:
    (tmp_path / "broken.html").write_text(
        "<!doctype html><html lang='en'><head><title>x</title><style>a:focus {outline: none}</style></head><body><main>"
        "<h1>x</h1><img src='data:,'><a href='#x'>go</a><div style='width: 3000px'>wide</div></main>"
        "<script>undefined.x</script></body></html>"
    )
    lines = checked([tmp_path / "broken.html"])
    assert {kind: sum(line["kind"] == kind for line in lines) for kind in ("axe", "overflow", "focus", "script")} == {
        "axe": VISITS_PER_PAGE, "overflow": VISITS_PER_PAGE, "focus": VISITS_PER_PAGE, "script": VISITS_PER_PAGE,
    }  # fmt: skip


def test_problems_behind_a_control_are_reported(tmp_path: Path) -> None:
    (tmp_path / "closed.html").write_text(
        "<!doctype html><html lang='en'><head><title>x</title></head><body><main><h1>x</h1>"
        "<details><summary>more</summary><img src='data:,'></details></main></body></html>"
    )
    lines = [finding for finding in checked([tmp_path / "closed.html"]) if finding["kind"] != "visited"]
    assert [(line["kind"], line["text"].split()[0]) for line in lines] == [("axe", "image-alt")] * VISITS_PER_PAGE
