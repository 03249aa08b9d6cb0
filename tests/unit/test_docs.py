"""Markdown leads somewhere: links, anchors, make targets, commands, modules; without the site's generator."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shortlist.cli.commands import app
from shortlist.spec.reference_page import reference_page
from shortlist.spec.spec import Spec

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_LONGEST = 120
_CITING = {".py", ".yaml", ".txt"}
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def dead_links(page: Path) -> Iterator[str]:
    """Give the relative links of a page that lead to no file or no heading."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in _LINK.findall(re.sub(r"`[^`]*`", "", text)):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings in links."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert list(dead_links(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_a_page_have_at_most_120_characters(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [(number, line) for number, line in enumerate(lines, 1) if len(line) > _LONGEST] == []


def test_decision_records_are_numbered_in_order_and_named_by_their_titles() -> None:
    records = sorted((ROOT / "docs" / "adr").glob("*.md"))
    titles = [record.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for record in records]
    names = [re.sub(r"[^a-z0-9]+", "-", title.split(". ", 1)[1].lower()).strip("-") for title in titles]
    assert [record.name for record in records] == [f"{n:04d}-{name}.md" for n, name in enumerate(names, 1)]
    assert [int(title.split(". ")[0]) for title in titles] == list(range(1, len(titles) + 1))


def test_decision_records_that_are_cited_exist() -> None:
    numbers = {int(record.name[:4]) for record in (ROOT / "docs" / "adr").glob("*.md")}
    folders = ("shortlist", "models", "monitoring", "deploy", "tests/unit", "requirements")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*") if path.suffix in _CITING]
    for path in (ROOT / "Makefile", *PAGES, *files):
        cited = re.findall(r"(?:ADR |docs/adr/)0*(\d+)", path.read_text(encoding="utf-8", errors="replace"))
        assert {int(number) for number in cited} <= numbers, path


def test_a_dead_link_is_reported(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Title\n\n## What to do, and when\n")
    page = tmp_path / "page.md"
    good = "[a](other.md) [b](other.md#what-to-do-and-when) [c](https://example.org/x) `[d](code.md)`\n"
    page.write_text(good + "```\n[e](fence.md)\n```\n[f](missing.md) [g](other.md#no-such-part)\n")
    assert list(dead_links(page)) == ["missing.md", "other.md#no-such-part"]


def test_commands_in_the_documentation_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = {one.name or one.callback.__name__ for one in app.registered_commands if one.callback is not None}
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue
        text = page.read_text(encoding="utf-8")
        code = "\n".join([*(found[0] for found in _FENCE.finditer(text)), *re.findall(r"`[^`\n]+`", text)])
        named = set(re.findall(r"(?:^|`|; )make ([a-z][a-z-]*)", code, re.MULTILINE))
        assert named <= targets, f"{page.name}: no such target {named - targets}"
        called = set(re.findall(r"\.venv/bin/shortlist ([a-z][a-z-]*)", text))
        assert called <= commands, f"{page.name}: no such command {called - commands}"


def test_every_page_of_the_site_is_in_its_tree() -> None:
    listed = set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {page.name for page in (ROOT / "docs").glob("*.md")}


def test_the_reference_lists_its_modules_as_they_describe_themselves() -> None:
    for name in ("reference-extending.md", "reference-framework.md"):
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        modules = re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)
        lines = " ".join(page.split())
        assert modules
        for module in modules:
            place = ROOT / module.replace(".", "/")
            file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            description = (ast.get_docstring(ast.parse(file.read_text())) or "").splitlines()[0]
            assert f"- `{module}`: {description}" in lines


def test_the_page_of_all_keys_is_what_the_sections_say() -> None:
    page = (ROOT / "docs/reference-spec.md").read_text(encoding="utf-8")
    assert page == reference_page(), "next: shortlist schema --markdown > docs/reference-spec.md"
    for path in ("`data.source`, kind `files`", "`features.columns[]`, kind `target`", "`serving.canary.guards.NAME`"):
        assert f"\n## {path}\n" in page
    keys = set(re.findall(r"^- `(\w+)` \(", page, re.MULTILINE))
    definitions = [Spec.model_json_schema(), *Spec.model_json_schema()["$defs"].values()]
    assert {name for definition in definitions for name in definition.get("properties", {})} - {"kind"} <= keys
