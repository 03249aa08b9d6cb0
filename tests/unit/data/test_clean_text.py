"""The compiled reader of clean text: what it accepts is what Polars reads, and it leaves everything else to others."""

from __future__ import annotations

from typing import Final

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from shortlist.data.reading.text.clean_text import CleanText
from shortlist.data.reading.text.quoting import NO_QUOTES
from shortlist.data.reading.text.text_blocks import TextBlock

TYPES: Final = {"whole": pl.Int64(), "code": pl.String(), "real": pl.Float64(), "said": pl.String()}
FIELDS: Final = ["whole", "code", "undeclared", "real", "said"]
NULLS: Final = ("NA", "-1", "nothing at all")
DIGITS: Final = "0123456789"


def parsed(text: str | bytes, null_values: tuple[str, ...] = NULLS) -> pl.DataFrame | None:
    data = text.encode() if isinstance(text, str) else text
    reader = CleanText(FIELDS, ",", TYPES, {"code"}, null_values)
    return reader.parse(TextBlock(data, 1, data.count(b"\n"), NO_QUOTES, len(data)), list(TYPES))


def by_polars(text: str) -> pl.DataFrame:
    schema = {**dict.fromkeys(FIELDS, pl.String()), **TYPES}
    nulls = list(NULLS)
    frame = pl.read_csv(
        text.encode(), has_header=False, schema={name: schema[name] for name in FIELDS}, null_values=nulls
    )
    codes = [None if code is None else int(code, 16) for code in frame["code"]]
    signed = [code if code is None or code < 1 << 63 else code - (1 << 64) for code in codes]
    return frame.with_columns(pl.Series("code", signed, pl.Int64())).select(list(TYPES))


nothing = st.sampled_from(["", *NULLS])
wholes = st.integers(-(10**18) + 1, 10**18 - 1).map(str) | st.text(DIGITS, min_size=1, max_size=18)
codes = st.text("0123456789abcdefABCDEF", min_size=1, max_size=16)
points = st.tuples(st.text(DIGITS, min_size=1, max_size=7), st.text(DIGITS, max_size=8)).map(".".join)
reals = wholes | points | points.map("-{}".format)
texts = st.text(st.characters(exclude_characters=',"\r\n', exclude_categories=["Cs"]), max_size=40)
rows = st.tuples(*(nothing | kind for kind in (wholes, codes, texts, reals, texts)))


@settings(deadline=None)  # the first call compiles
@given(st.lists(rows, min_size=1, max_size=12), st.sampled_from(["\n", "\r\n"]))
def test_what_is_clean_is_what_polars_reads(table: list[tuple[str, ...]], ending: str) -> None:
    text = "".join(",".join(row) + ending for row in table)
    parsed_frame = parsed(text)
    assert parsed_frame is not None
    assert_frame_equal(parsed_frame, by_polars(text), check_exact=True)


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.text('0129.-+eaN," \r\n', max_size=4)] * len(FIELDS)), min_size=1, max_size=4))
def test_what_is_accepted_of_any_text_is_what_polars_reads(table: list[tuple[str, ...]]) -> None:
    text = "".join(",".join(row) + "\n" for row in table)
    if '"' in text:  # no such block is given to it
        return
    parsed_frame = parsed(text)
    if parsed_frame is not None:
        assert_frame_equal(parsed_frame, by_polars(text), check_exact=True)


@pytest.mark.parametrize("place", range(8))
def test_eight_digits_at_once_are_eight_digits(place: int) -> None:
    for byte in {*range(128)} - {*b',\r\n"'}:
        code = "fedcBA98"[:place] + chr(byte) + "01234567"[place + 1 :]
        parsed_frame = parsed(f"1,{code},x,1.5,text\n")
        assert (parsed_frame is not None) == (chr(byte) in "0123456789abcdefABCDEF"), code
        if parsed_frame is not None:
            assert parsed_frame["code"].item() == int(code, 16)


@pytest.mark.parametrize("place", range(8))
def test_eight_bytes_that_are_no_ascii_are_no_digits(place: int) -> None:
    for letter in ("é", "°", "±", "Ā"):  # of two bytes, the second of which is a digit's code and the upper bit
        code = ("0" * place + letter + "0" * 8).encode()[:8]
        assert parsed(b"1," + code + b",x,1.5,text\n") is None, code


@pytest.mark.parametrize("length", range(1, 10))
def test_decimals_of_any_length_are_what_they_say(length: int) -> None:
    for place in range(length):
        for byte in {*range(128)} - {*b',\r\n"-'}:
            number = "987654321"[:place] + chr(byte) + "123456789"[place + 1 : length]
            parsed_frame = parsed(f"{number},a,x,1.5,text\n")
            assert (parsed_frame is not None) == (chr(byte) in DIGITS), number
            if parsed_frame is not None:
                assert parsed_frame["whole"].item() == int(number)


def test_many_rows_stay_in_order_and_keep_what_they_lack() -> None:
    rows = [(number if number % 3 else "", f"{number * 7:x}" if number % 5 else "", number) for number in range(200)]
    text = "".join(f"{whole},{code},x,{number}.5,text {number}\n" for whole, code, number in rows)
    parsed_frame = parsed(text)
    assert parsed_frame is not None
    assert_frame_equal(parsed_frame, by_polars(text), check_exact=True)


@pytest.mark.parametrize(
    "row",
    [
        "1,a,x,1.5",  # a field is missing
        "1,a,x,1.5,t,",  # one too many
        "",
        "+1,a,x,1.5,t",
        " 1,a,x,1.5,t",
        "1.0,a,x,1.5,t",
        "-,a,x,1.5,t",
        "9223372036854775808,a,x,1.5,t",  # over 64 bits
        "1,0x1f,x,1.5,t",
        "1,g,x,1.5,t",
        "1,00000000000000001,x,1.5,t",  # 17 digits
        "1,a,x,1e5,t",
        "1,a,x,nan,t",
        "1,a,x,.,t",
        "1,a,x,1.2.3,t",
        "1,a,x,0.1234567890123456,t",  # 17 digits: a division would round twice
        "1,a,x,1234567890123456789,t",
        "1,a\rb,x,1.5,t",
    ],
)
def test_text_that_is_not_plainly_right_is_left_to_the_other_reader(row: str) -> None:
    assert parsed(f"1,a,x,1.5,t\n{row}\n1,a,x,1.5,t\n") is None


def test_bytes_that_are_no_utf8_are_left_to_the_other_reader() -> None:
    assert parsed(b"1,a,x,1.5,caf\xc3\xa9\n") is not None
    assert parsed(b"1,a,x,1.5,caf\xe9\n") is None


def test_a_null_value_that_holds_a_separator_hides_no_row() -> None:
    parsed_frame = parsed("1,a,x,1.5,t\n", null_values=("1,a", "x,1.5,t\n1"))
    assert parsed_frame is not None
    assert parsed_frame.row(0) == (1, 10, 1.5, "t")


def test_long_and_short_texts_stay_apart() -> None:
    said = ["", "twelve bytes", "thirteen byte", "a text of far more bytes than a view holds", "ü" * 7]
    parsed_frame = parsed("".join(f"1,a,x,1.5,{text}\n" for text in said))
    assert parsed_frame is not None
    assert parsed_frame["said"].to_list() == [None, *said[1:]]
