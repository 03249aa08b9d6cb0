"""What can be said of a page's accessibility without a browser."""

from __future__ import annotations

from html.parser import HTMLParser

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


def problems_of(page: str) -> list[str]:
    """Return what is wrong with a page; empty when nothing is."""
    rules = _Rules()
    rules.feed(page)
    twice = {name for name in rules.ids if rules.ids.count(name) > 1}
    rules.found += [f"id '{name}' is given twice" for name in sorted(twice)]
    rules.found += [f"no element '{name}' to be labelled by" for name in rules.wanted if name not in rules.ids]
    rules.found += [f"two regions are called '{name}'" for name in set(rules.labels) if rules.labels.count(name) > 1]
    return rules.found
