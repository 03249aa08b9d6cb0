"""The rules for pages detect the problems that they are for."""

from __future__ import annotations

from html import escape

import pytest

from tests.page_rules import HOSTILE, injected, problems_of

GOOD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>t</title></head><body>
<h1>One</h1><h2 id="a">Two</h2><section aria-labelledby="a">
<div class="scroll" role="region" aria-label="Table: a" tabindex="0"><table>
<tr><th scope="col">n</th></tr></table></div>
<div role="img" aria-label="A curve"><svg><path d=""/></svg></div></section></body></html>"""


def test_a_good_page_has_no_problem() -> None:
    assert problems_of(GOOD) == []


@pytest.mark.parametrize(
    ("old_text", "new_text", "expected_problem"),
    [
        (' lang="en"', "", "the page has no language"),
        ("<h2", "<h3", "h3 follows h1"),
        (' aria-label="A curve"', "", "a drawing has no label"),
        ('role="img"', "", "a drawing is neither labelled nor hidden"),
        ('class="scroll"', "", "a table has no container that scrolls"),
        (' tabindex="0"', "", "the keyboard cannot reach it"),
        (' scope="col"', "", "a heading of a table does not say"),
        (">n<", "><", "an empty th"),
        ('labelledby="a"', 'labelledby="b"', "no element 'b' to be labelled by"),
        ("<h1>", '<h1 id="a">', "id 'a' is given twice"),
        ("<h1>", '<img src="x"><h1>', "a picture has no alternative text"),
    ],
)
def test_problems_of_a_bad_page_are_reported(old_text: str, new_text: str, expected_problem: str) -> None:
    assert old_text in GOOD
    changed = GOOD.replace(old_text, new_text, 1).replace("</h2>", "</h3>" if new_text == "<h3" else "</h2>")
    assert any(expected_problem in problem for problem in problems_of(changed))


@pytest.mark.parametrize(
    "template",
    [
        "<p>{}</p>",
        '<a title="{}">x</a>',
        "<script>const rows = ['{}']</script>",
        "<svg><text>{}</text></svg>",
    ],
)
def test_injected_markup_is_detected_and_escaped_text_is_not(template: str) -> None:
    assert injected(template.format(HOSTILE)) != []
    shown_text = (
        escape(HOSTILE) if "<script>" not in template else HOSTILE.replace("<", "\\u003c").replace("'", "\\u0027")
    )
    assert injected(template.format(shown_text), least=0) == []
    assert injected("<p>nothing</p>") == ["shown 0 times, not 1"]
