"""Strategies for texts of specs: shipped ones with changes, and with sections drawn from the spec's own schema."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from hypothesis import strategies as st

from shortlist.spec.load import SpecError, parse_spec
from shortlist.spec.spec import Spec
from tests.fuzz.changes import changed_tree

if TYPE_CHECKING:
    from schemathesis import GenerationMode

_ROOT: Final = Path(__file__).parents[2]
_FOLDERS: Final = ("pipelines/specs", "tests/specs/valid", "tests/specs/invalid")
_TEXTS: Final = [path.read_text() for folder in _FOLDERS for path in sorted((_ROOT / folder).glob("*.yaml"))]

EARLIER_FAILURES: Final = (
    "when: 2026-02-30", "{a: 1}: 2", "a: !!timestamp x", "a: !!int x", "a: " + "9" * 5_000, "[" * 3_000, "{" * 3_000,
    'a: "\\ud800"', 'a: "\\0"', "a: &a [*a]", "? [1, 2]\n: 3", "1: 2", "null: 2", "true: no", "a: .nan", "a: -.inf",
    "a: !!python/object/apply:os.system [ls]", "a: !!binary x", "a: !!set {b}", "a: !!float x", "a: 1e999999",
    "a: &a [1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
    "d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e]",
    "a: &x1 [0]\n" + "\n".join(f"a{n}: &x{n} [*x{n - 1}]" for n in range(2, 2_000)), "<<: 3", "a: {<<: [1]}", "=",
    "---\n---\n",
    "%YAML 9.9\n---\na: 1", "\ufeffa: 1", "a: \x07", "a:\t- b", "*nobody", "&a", "? ", "- - - -", "'", '"\\x',
    "a: !<> b", "!", "",
    "version: 1_0\nname: 0x1f", "a: 0b", "a: 0x", "a: 1:99:99", "a: 0o8", "a: 08", "a: +", "a: -_", "a: ._",
    "a: 1._e+5",
)  # fmt: skip
"""What once gave a traceback, or is like it."""

_VALUES: Final = st.sampled_from((
    None, True, False, 0, 1, -1, 2**31, 2**62, 2**64, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", " ",
    "0", "x" * 5_000,
    "C{1..3}", "C{1..99999999999}", "C{3..1}", "{1..2}{3..4}", "*", "?", "[", "[!", "é😀", "\u202e", "no",
    "2026-02-30",
    "2026-01-05", "12:60", "* * * * *", "0 3 * * *", "99 99 * * *", "UTC", "Nowhere/Else", "../etc", "http://[",
    "s3://", "s3://x", "postgresql://:@",
    [], {}, [[]], [None], [{}], {"kind": None}, {"kind": "x"}, {"kind": []}, {"kind": "hash"}, {"": ""}, ["a"] * 200,
))  # fmt: skip
SECTIONS: Final = tuple(name for name in Spec.model_fields if name not in {"version", "name"})


# What is parsed and built here takes twenty seconds of processor time, which every collection of tests would take too.
@cache
def _trees() -> list[dict[str, Any]]:
    loaded = []
    for text in _TEXTS:
        try:
            loaded.append(yaml.safe_load(text))
        except (yaml.YAMLError, ValueError):
            continue
    return [json.loads(json.dumps(tree, default=str)) for tree in loaded if isinstance(tree, dict)]


@cache
def _valid_trees() -> list[dict[str, Any]]:
    return [tree for tree in _trees() if is_valid(written(tree))]


def is_valid(text: str) -> bool:
    """Return whether a text is a valid spec."""
    try:
        parse_spec(text)
    except SpecError:
        return False
    return True


def written(tree: Any) -> str:
    """Return the YAML of a tree."""
    return str(yaml.safe_dump(tree, allow_unicode=True, sort_keys=False))


@cache
def section(name: str, modes: tuple[GenerationMode, ...] = ()) -> st.SearchStrategy[Any]:
    """Return a strategy for a section of a spec, as the schema of specs has it, or nearly.

    Args:
        name: Name of the section.
        modes: Whether what is drawn fits the schema or does not; empty: both.
    """
    import schemathesis

    schema = Spec.model_json_schema(ref_template="#/components/schemas/{model}")
    content = {"application/json": {"schema": schema["properties"][name]}}
    operation = {"requestBody": {"required": True, "content": content}, "responses": {"200": {"description": ""}}}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "specs", "version": "1"},
        "components": {"schemas": schema["$defs"]},
        "paths": {"/": {"post": operation}},
    }
    drawn = schemathesis.openapi.from_dict(document)["/"]["POST"]
    return st.one_of(*(drawn.as_strategy(mode) for mode in modes or schemathesis.GenerationMode)).map(
        lambda case: case.body
    )


@st.composite
def specs_with_changed_values(draw: st.DrawFn) -> str:
    """Draw a shipped spec with some of its values, keys or items changed."""
    return written(draw(changed_tree(draw(st.sampled_from(_trees())), _VALUES, most=4)))


@st.composite
def specs_with_drawn_sections(draw: st.DrawFn) -> str:
    """Draw a valid spec with keys of one section drawn from the schema."""
    tree, name = dict(draw(st.sampled_from(_valid_trees()))), draw(st.sampled_from(SECTIONS))
    drawn, previous = draw(section(name)), tree.get(name)
    if isinstance(drawn, dict) and isinstance(previous, dict):
        names = draw(st.lists(st.sampled_from(sorted(drawn)), max_size=3, unique=True)) if drawn else []
        drawn = {**previous, **{key: drawn[key] for key in names}}
    return written({**tree, name: drawn})


@st.composite
def specs_with_changed_text(draw: st.DrawFn) -> str:
    """Draw a shipped spec with pieces of its text replaced."""
    text = draw(st.sampled_from(_TEXTS))
    pieces = st.text(st.sampled_from("\t\n :-{}[],&*!|>'\"%@`#?\\09eE.+_~\x00\x85\u2028é😀\ud800"), max_size=5)
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(text)))
        end = start + draw(st.sampled_from((0, 0, 1, 5, 50)))
        text = text[:start] + draw(pieces | st.sampled_from(EARLIER_FAILURES).map(lambda each: each[:200])) + text[end:]
    return text
