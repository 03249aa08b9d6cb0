"""Random specs: whatever somebody writes into one, `shortlist check` says what is wrong and never shows a traceback.

Usage: python -m benchmarks.fuzz_specs [--cases 10000] [--seed 1]
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from pydantic import BaseModel

from benchmarks.bench import record_fuzzing
from benchmarks.spec_grammar import Grammar
from shortlist.spec.load import SpecError, canonical_json, digest, parse_spec
from shortlist.spec.spec import Spec

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = ("pipelines/specs", "tests/specs/valid", "tests/specs/invalid")

SEEDS: Final = (
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
"""What once made a traceback, or is of its kind: documents and, without their key, values."""

_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 2**31, 2**62, 2**64, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", " ",
    "0", "x" * 5_000,
    "C{1..3}", "C{1..99999999999}", "C{3..1}", "{1..2}{3..4}", "*", "?", "[", "[!", "é😀", "\u202e", "no",
    "2026-02-30",
    "2026-01-05", "12:60", "* * * * *", "0 3 * * *", "99 99 * * *", "UTC", "Nowhere/Else", "../etc", "http://[",
    "s3://", "s3://x", "postgresql://:@",
    [], {}, [[]], [None], [{}], {"kind": None}, {"kind": "x"}, {"kind": []}, {"kind": "hash"}, {"": ""}, ["a"] * 200,
)  # fmt: skip


class Failure(NamedTuple):
    """A text that was neither accepted nor refused with a message."""

    text: str
    problem: str


def cases(count: int, seed: int) -> Iterator[str]:
    """Give texts of specs: the known seeds first, then shipped specs with random changes or with random sections."""
    yield from SEEDS
    draw = random.Random(seed)
    texts = [path.read_text() for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.yaml"))]
    trees = [tree for text in texts if isinstance(tree := _plain(text), dict)]
    values = [
        seed_text.partition(": ")[2] for seed_text in SEEDS if seed_text.startswith("a: ") and "\n" not in seed_text
    ]
    sound = [tree for tree in trees if is_read(yaml.safe_dump(tree))]
    grammar = Grammar(draw)
    for _ in range(max(0, count - len(SEEDS))):
        kind = draw.random()
        if kind < 0.4:
            yield _changed_tree(draw, draw.choice(trees), values)
        elif kind < 0.8:
            yield _drawn_sections(draw, draw.choice(sound), grammar)
        else:
            yield _changed_text(draw, draw.choice(texts))


def check(text: str) -> str:
    """Return what is wrong with how a text is treated; empty when it is read, or refused with a message."""
    try:
        spec = parse_spec(text)
        for section in _sections(spec):
            json.loads(canonical_json(section))
            digest(section)
        parsed_again = parse_spec(canonical_json(spec))
        return "" if parsed_again == spec else "its own canonical JSON is another spec"
    except SpecError as error:
        message = str(error)
        try:
            message.encode()
        except UnicodeEncodeError:
            return "the message cannot be printed"
        return "" if 0 < len(message) < 100_000 else f"a message of {len(message):,} characters"
    except BaseException as error:  # whatever it is, it is a failure
        if isinstance(error, KeyboardInterrupt):
            raise
        return "".join(traceback.format_exception(error)[-3:])


def is_read(text: str) -> bool:
    """Return whether a text is a valid spec."""
    try:
        parse_spec(text)
    except SpecError:
        return False
    return True


def _sections(spec: Spec) -> Iterator[BaseModel]:
    """Give a spec, its sections, and those that have names of their own."""
    yield spec
    for value in (getattr(spec, name) for name in Spec.model_fields):
        yield from value.values() if isinstance(value, Mapping) else (value,) if isinstance(value, BaseModel) else ()


def run(count: int, seed: int) -> tuple[int, list[Failure], float]:
    """Return how many texts were tried, those that failed, and the longest time that one took in seconds."""
    case_count, failures, longest = 0, [], 0.0
    for text in cases(count, seed):
        started = time.perf_counter()
        problem = check(text)
        longest = max(longest, time.perf_counter() - started)
        case_count += 1
        if problem:
            failures.append(Failure(text, problem))
    return case_count, failures, longest


def _plain(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def _changed_tree(draw: random.Random, tree: dict[str, Any], values: list[str]) -> str:
    """Return a spec with one to four of its values, keys or items replaced, taken out, doubled or renamed."""
    root = json.loads(json.dumps(tree, default=str))
    raw: dict[str, str] = {}
    for _ in range(draw.choice((1, 1, 2, 4))):
        places = list(_places(root))
        holder, key = draw.choice(places)
        action = draw.random()
        if action < 0.5:
            holder[key] = copy.deepcopy(draw.choice(_VALUES))
        elif action < 0.65:
            mark = f"RAW{len(raw)}RAW"
            raw[mark] = draw.choice(values)
            holder[key] = mark
        elif action < 0.75:
            del holder[key]
        elif action < 0.85 and isinstance(holder, dict):
            name = draw.choice((key[:-1], key + "s", key.upper(), "", "é", key[::-1]))
            holder[name] = holder.pop(key)
        elif isinstance(holder, list):
            holder.insert(0, json.loads(json.dumps(holder[key])))
        else:
            other, place = draw.choice(places)
            holder[key] = json.loads(json.dumps(other[place])) if _contains_key(other, place) else None
    text = yaml.safe_dump(root, allow_unicode=True, sort_keys=False)
    for mark, value in raw.items():
        text = text.replace(mark, value)
    return text


def _drawn_sections(draw: random.Random, tree: dict[str, Any], grammar: Grammar) -> str:
    """Return a spec with one or two of its sections drawn at random; models and features are mostly added to."""
    root = json.loads(json.dumps(tree, default=str))
    texts = sorted({holder[key] for holder, key in _places(tree) if isinstance(holder[key], str)})
    for name in draw.sample(grammar.sections, draw.choice((1, 1, 2))):
        drawn_section, previous_section = grammar.section(name, texts), root.get(name)
        if name == "features" and draw.random() < 0.8:
            root[name]["columns"] += drawn_section.get("columns", [])
        elif name == "data" or (
            isinstance(previous_section, dict) and drawn_section is not None and draw.random() < 0.8
        ):
            # Of the log's declaration, on which all else depends, only a part.
            names = draw.sample(sorted(drawn_section), min(len(drawn_section), 2)) if name == "data" else drawn_section
            root[name] = {**(previous_section or {}), **{key: drawn_section[key] for key in names}}
        else:
            root[name] = drawn_section
    return yaml.safe_dump(root, allow_unicode=True, sort_keys=False)


def _contains_key(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in children:
        yield value, key
        yield from _places(part)


def _changed_text(draw: random.Random, text: str) -> str:
    """Return a text with characters changed, taken out, put in or moved."""
    letters = list(text)
    for _ in range(draw.choice((1, 2, 5, 20))):
        at = draw.randrange(len(letters) + 1)
        if draw.random() < 0.3:
            del letters[at : at + draw.choice((1, 5, 50))]
        elif draw.random() < 0.8:
            letters.insert(at, draw.choice("\t\n :-{}[],&*!|>'\"%@`#?\\0123456789eE.+_~\x00\x85\u2028é😀\ud800"))
        else:
            letters[at:at] = draw.choice(SEEDS)[:200]
    return "".join(letters)


def main() -> None:
    """Try specs and say how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    case_count, failures, longest = run(options.cases, options.seed)
    for failure in failures[:10]:
        sys.stdout.write(f"--- {failure.text[:2_000]!r}\n{failure.problem}\n")
    sys.stdout.write(f"specs: {case_count:,} tried, {len(failures):,} failed; the slowest took {longest:.2f} s\n")
    record_fuzzing("specs", case_count, len(failures))
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
