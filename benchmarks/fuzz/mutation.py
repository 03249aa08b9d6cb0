"""Random changes to what a client sends: of JSON's nodes, of bytes, of protobuf messages."""

from __future__ import annotations

import json
from copy import deepcopy
from random import Random
from typing import Any, Final

_DEEP: Final = "[" * 1_000 + "7" + "]" * 1_000
_ODD: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, -(2**70), 0.5, -0.0, 1e308,
    1e-320, "", " ", "score", "NULL", "INT64", "BYTES", "FP16", "x" * 5_000, "\0", "漢字", "\U0001f600", "\ud800",
    "2026-01-31", "2026-W05-6", "ff", "0xff", "1_0", "\u0663", [], {}, [[]], [{}], [None], [[[[[]]]]], [1, [2]],
    {"name": "score"}, {"binary_data_size": 8}, {"binary_data": True}, float("nan"), float("inf"),
)  # fmt: skip
_TOKENS: Final = (
    b"NaN", b"Infinity", b"1e999", b"-", b"9" * 5_000, b"\\ud800", b"\\u0000", b"\xff\xfe", b"\x00", b"{", b"}", b"[",
    b"]", b'"', b",", b":", b"null", b"true", b"-0", b"1.0", b"1e5", _DEEP.encode(), b"\xef\xbb\xbf", b"/*",
    b"\r\n\r\n", b"\xf0\x9f",
)  # fmt: skip


def odd_value(random: Random) -> Any:
    """Return a value that is rarely wanted."""
    return deepcopy(random.choice(_ODD))


def changed_tree(random: Random, tree: Any) -> Any:
    """Return JSON with one to three of its nodes replaced, removed, repeated or wrapped."""
    for _ in range(random.choice((1, 1, 2, 3))):
        tree = _changed_once(random, tree)
    return tree


def as_json(random: Random, tree: Any) -> bytes:
    """Return the text of JSON; Python's own also writes lone surrogates and what is no number."""
    text = json.dumps(tree)
    if random.random() < 0.02:
        text = text.replace("[]", _DEEP, 1) if "[]" in text else text.replace('"data": [', f'"data": [{_DEEP}, ', 1)
    return text.encode()


def changed_bytes(random: Random, content: bytes) -> bytes:
    """Return bytes with one to four changes: flipped, removed, repeated, inserted, cut."""
    raw = bytearray(content)
    for _ in range(random.randint(1, 4)):
        at = random.randint(0, len(raw))
        length = random.choice((1, 1, 2, 8, 64))
        match random.randrange(6):
            case 0 if at < len(raw):
                raw[at] ^= 1 << random.randrange(8)
            case 1:
                del raw[at : at + length]
            case 2:
                raw[at:at] = raw[at : at + length] * random.choice((1, 2, 50))
            case 3:
                raw[at:at] = random.choice(_TOKENS)
            case 4:
                raw[at : at + length] = random.randbytes(length)
            case _:
                del raw[at:]
    return bytes(raw)


def _changed_once(random: Random, tree: Any) -> Any:
    places = [*_places(tree)]
    if not places:
        return odd_value(random)
    holder, key = random.choice(places)
    match random.randrange(6):
        case 0:
            del holder[key]
        case 1:
            holder[key] = [holder[key]] * random.choice((1, 2, 3))
        case 2 if isinstance(holder, list):
            holder.insert(key, holder[key])
        case 3 if isinstance(holder, dict):
            holder[str(odd_value(random))] = odd_value(random)
        case _:
            holder[key] = odd_value(random)
    return tree


def _places(tree: Any) -> list[tuple[Any, Any]]:
    places: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        keys: list[Any] = [*node] if isinstance(node, dict) else [*range(len(node))] if isinstance(node, list) else []
        for key in keys[:50]:
            places.append((node, key))
            waiting.append(node[key])
    return places
