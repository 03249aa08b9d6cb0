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
WAYS = 4
"""Wide and narrow, light and dark."""

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
    done = subprocess.run([node, script, MODULES, browser, *pages], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines: list[dict[str, Any]] = json.loads(done.stdout)
    return lines


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """What is found on the pages that the tests of pages left."""
    if not PAGES:
        pytest.skip("there are no pages in build/pages; make test-pages writes them")
    return checked(PAGES)


@pytest.mark.parametrize("kind", ["axe", "overflow", "focus", "script"])
def test_no_page_breaks_a_rule(kind: str, found: list[dict[str, Any]]) -> None:
    broken = [f"{Path(one['page']).name} {one['width']} px {one['scheme']}: {one['text']}" for one in found
              if one["kind"] == kind]  # fmt: skip
    assert not broken, "\n".join(broken)


def test_every_page_was_opened_in_every_way_and_has_something_to_reach(found: list[dict[str, Any]]) -> None:
    visited = [one for one in found if one["kind"] == "visited"]
    assert len(visited) == WAYS * len(PAGES)
    assert all(int(one["text"].split()[0]) > 0 for one in visited)


def test_evidently_s_pages_are_among_them_and_their_controls_are_used(found: list[dict[str, Any]]) -> None:
    controls = {Path(one["page"]).stem: int(one["text"].split()[1]) for one in found if one["kind"] == "visited"}
    assert controls["evidently-drift"] >= 5  # theme, order of rows, details, their tabs, rows per page
    assert controls["evidently-quality"] >= 1


def test_a_broken_page_is_found(tmp_path: Path) -> None:
    (tmp_path / "broken.html").write_text(
        "<!doctype html><html lang='en'><head><title>x</title><style>a:focus {outline: none}</style></head><body><main>"
        "<h1>x</h1><img src='data:,'><a href='#x'>go</a><div style='width: 3000px'>wide</div></main>"
        "<script>undefined.x</script></body></html>"
    )
    lines = checked([tmp_path / "broken.html"])
    assert {kind: sum(one["kind"] == kind for one in lines) for kind in ("axe", "overflow", "focus", "script")} == {
        "axe": WAYS, "overflow": WAYS, "focus": WAYS, "script": WAYS,
    }  # fmt: skip


def test_what_is_broken_behind_a_control_is_found(tmp_path: Path) -> None:
    (tmp_path / "closed.html").write_text(
        "<!doctype html><html lang='en'><head><title>x</title></head><body><main><h1>x</h1>"
        "<details><summary>more</summary><img src='data:,'></details></main></body></html>"
    )
    lines = [one for one in checked([tmp_path / "closed.html"]) if one["kind"] != "visited"]
    assert [(one["kind"], one["text"].split()[0]) for one in lines] == [("axe", "image-alt")] * WAYS
