"""Strategies that change what is valid: nodes of a tree, and bytes."""

from __future__ import annotations

import copy
from typing import Any, Final

from hypothesis import strategies as st

JSON_VALUES: Final = st.one_of(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=9),
        lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=5), parts, max_size=3),
        max_leaves=5,
    ),
    st.sampled_from(
        (2**63, 2**64, -(2**70), 1e308, "score", "INT64", "BYTES", "x" * 5_000, "\ud800", "\0", {"name": "score"},
         {"binary_data_size": 8}, {"binary_data": True}, [[[[[]]]]], [1, [2]])
    ),
)  # fmt: skip
"""Any value of JSON, and those with a meaning for some reader."""
_DEEP: Final = b"[" * 1_000 + b"7" + b"]" * 1_000
JSON_TEXTS: Final = (
    b"NaN", b"Infinity", b"1e999", b"-", b"9" * 5_000, b"\\ud800", b"\\u0000", b"\xff\xfe", b"\x00", b"{", b"}", b"[",
    b"]", b'"', b",", b":", b"null", b"true", b"-0", b"1.0", b"1e5", _DEEP, b"\xef\xbb\xbf", b"/*",
    b"\r\n\r\n", b"\xf0\x9f",
)  # fmt: skip
"""Pieces of JSON that a reader may stumble over."""


def places_of(tree: Any) -> list[tuple[Any, Any]]:
    """Return all pairs of a mapping or list and a key of it."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [pair for key, part in children for pair in ((tree, key), *places_of(part))]


@st.composite
def changed_tree(draw: st.DrawFn, tree: Any, values: st.SearchStrategy[Any], most: int) -> Any:
    """Draw a tree with up to `most` of its nodes replaced, removed, repeated, moved or renamed."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(0, most))):
        places = places_of(tree)[:2_000]
        if not places:
            return draw(values)
        holder, key = draw(st.sampled_from(places))
        match draw(st.sampled_from(("replace", "replace", "remove", "repeat", "move", "rename"))):
            case "remove":
                del holder[key]
            case "repeat":
                holder[key] = [holder[key]] * draw(st.integers(1, 3))
            case "move":
                other, place = draw(st.sampled_from(places))
                holder[key] = copy.deepcopy(other[place])
            case "rename" if isinstance(holder, dict):
                holder[draw(st.sampled_from((str(key)[:-1], f"{key}s", str(key).upper())) | st.text())] = holder.pop(
                    key
                )
            case _:
                holder[key] = copy.deepcopy(draw(values))  # further changes must not reach the strategy's own
    return tree


@st.composite
def changed_bytes(draw: st.DrawFn, content: bytes, most: int = 3) -> bytes:
    """Draw bytes with one to `most` pieces replaced, removed, repeated or cut off."""
    for _ in range(draw(st.integers(1, most))):
        start = draw(st.integers(0, len(content)))
        end = start + draw(st.sampled_from((0, 1, 2, 8, 64, len(content))))
        piece = st.one_of(
            st.binary(max_size=9), st.sampled_from(JSON_TEXTS), st.just(b""), st.just(content[start:end] * 2),
            st.just(content[start:end][:64] * 50),
        )  # fmt: skip
        content = content[:start] + draw(piece) + content[end:]
    return content
