"""What can be said of a page's accessibility and of its safety without a browser."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass, replace
from enum import Enum
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from pydantic import BaseModel

_VOID = {"meta", "link", "br", "hr", "img", "input", "path", "use", "line", "rect", "circle", "polyline", "polygon"}
_CONTAINERS = {"scroll", "picture"}


class _Rules(HTMLParser):
    """Collects what is wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.wanted: list[str] = []
        self._open: list[tuple[str, dict[str, str]]] = []
        self._level = 0
        self._text: dict[int, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = {name: value or "" for name, value in attrs}
        above = {word for _, parent in self._open for word in parent.get("class", "").split()}
        roles = {parent.get("role", "") for _, parent in self._open}
        if tag == "html" and not own.get("lang"):
            self.found.append("the page has no language")
        if tag == "img" and "alt" not in own:
            self.found.append("a picture has no alternative text")
        if own.get("role") == "img" and not own.get("aria-label"):
            self.found.append("a drawing has no label")
        if tag == "svg" and "img" not in roles and own.get("aria-hidden") != "true":
            self.found.append("a drawing is neither labelled nor hidden")
        if tag == "table" and not above & _CONTAINERS:
            self.found.append("a table has no container that scrolls")
        if "scroll" in own.get("class", "").split() and not (own.get("aria-label") and own.get("tabindex") == "0"):
            self.found.append("a container that scrolls has no label, or the keyboard cannot reach it")
        if tag in ("h1", "h2", "h3", "h4"):
            level = int(tag[1])
            if level > self._level + 1:
                self.found.append(f"{tag} follows h{self._level}")
            self._level = level
        if tag == "th" and not own.get("scope"):
            self.found.append("a heading of a table does not say of what it is")
        self.ids += [own["id"]] if own.get("id") else []
        self.wanted += own.get("aria-labelledby", "").split()
        self.labels += [own["aria-label"]] if own.get("role") == "region" else []
        if tag not in _VOID:
            self._open.append((tag, own))
            self._text[len(self._open)] = ""

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "svg":
            self.handle_starttag(tag, attrs)
            self.handle_endtag(tag)

    def handle_data(self, data: str) -> None:
        for depth in range(1, len(self._open) + 1):
            self._text[depth] += data

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        assert self._open and self._open[-1][0] == tag, f"</{tag}> closes {self._open[-1:]}"
        text = self._text.pop(len(self._open)).strip()
        self._open.pop()
        if tag in ("th", "h1", "h2", "h3", "a", "title", "summary") and not text:
            self.found.append(f"an empty {tag}")


def leave_for_browser(page: str, name: str) -> None:
    """Write a page to the folder SHORTLIST_PAGES, where that is set, for the browser of `make test-pages`."""
    if folder := os.environ.get("SHORTLIST_PAGES"):
        (Path(folder) / f"{name}.html").write_text(page, encoding="utf-8")


def problems_of(page: str) -> list[str]:
    """Return what is wrong with a page; empty when nothing is. The page is left for the browser."""
    test = os.environ["PYTEST_CURRENT_TEST"].split("::", 1)[1].partition(" ")[0]
    leave_for_browser(page, re.sub(r"\W+", "-", test))
    rules = _Rules()
    rules.feed(page)
    twice = {name for name in rules.ids if rules.ids.count(name) > 1}
    rules.found += [f"id '{name}' is given twice" for name in sorted(twice)]
    rules.found += [f"no element '{name}' to be labelled by" for name in rules.wanted if name not in rules.ids]
    rules.found += [f"two regions are called '{name}'" for name in set(rules.labels) if rules.labels.count(name) > 1]
    return rules.found


HOSTILE = "</script><script>alert(1)</script>\"><img src=x onerror=alert(1)><!--'"
"""What nobody who names something may make a page do."""


def planted(value: Any, kept: Collection[str] = ()) -> Any:
    """Return a record with `HOSTILE` behind every text in it that may be any text.

    Args:
        value: Pydantic models, dataclasses, lists, tuples and mappings of them.
        kept: Names of fields that stay as they are: what the page reads as a moment, a name of a known set, a path.
    """
    if isinstance(value, str) and not isinstance(value, Enum):
        return value + HOSTILE
    if isinstance(value, Mapping):
        return {planted(key, kept): planted(each, kept) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(planted(each, kept) for each in value)
    if isinstance(value, BaseModel):
        fields = {name: field.annotation for name, field in type(value).model_fields.items()}
        free = [name for name, kind in fields.items() if name not in kept and "Literal[" not in str(kind)]
        return value.model_copy(update={name: planted(getattr(value, name), kept) for name in free})
    if is_dataclass(value) and not isinstance(value, type):
        free = [field.name for field in dataclass_fields(value) if field.name not in kept and field.init]
        return replace(value, **{name: planted(getattr(value, name), kept) for name in free})
    return value


class _Injected(HTMLParser):
    """Collects what a browser would run or build out of `HOSTILE`, and the texts of it that are shown."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.shown = 0
        self._script = ""
        self._is_script = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = {name: value or "" for name, value in attrs}
        self.found += [f"<{tag} {name}={value}>" for name, value in own.items() if name.startswith("on")]
        self.found += [f"<{tag} src={own['src']}>"] if own.get("src") in {"x", "x'"} else []
        self.found += [f"<{tag}> {value}" for value in own.values() if value.strip().lower().startswith("javascript:")]
        self.shown += sum("alert(1)" in value for value in own.values())
        self._is_script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self.found += ["a script of its own"] if self._script.strip() == "alert(1)" else []
            self._script, self._is_script = "", False

    def handle_data(self, data: str) -> None:
        if self._is_script:
            self._script += data
        self.shown += data.count(HOSTILE)

    def handle_comment(self, data: str) -> None:
        self.found += [f"<!--{data[:40]}"] if "alert" in data or len(data) > 5_000 else []


def injected(page: str, least: int = 1) -> list[str]:
    """Return what `HOSTILE` does on a page beside being shown; empty when nothing.

    Args:
        page: Its HTML.
        least: How often it has to be there, so that a page that leaves it out proves nothing.
    """
    seen = _Injected(page)
    return seen.found + ([f"shown {seen.shown} times, not {least}"] if seen.shown < least else [])
