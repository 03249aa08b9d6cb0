"""Where rows end, and which line a broken quote is blamed on."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shortlist.data.reading.text.quoting import complete_rows, line_ends

COMMA = ord(",")
TEXT = st.text(st.sampled_from('ab,"\n\r '), max_size=6)


def rows_of(data: bytes, final: bool = True) -> tuple[list[bytes], list[int], int]:
    quotes, end = complete_rows(data, COMMA, final)
    ends = quotes.outside(line_ends(data[:end]))
    starts = [0, *(int(place) + 1 for place in ends)]
    rows = [data[start : int(stop) + 1] for start, stop in zip(starts, ends, strict=False)]
    return rows, quotes.broken.tolist(), end


def test_a_quoted_line_end_ends_no_row() -> None:
    assert rows_of(b'1,"a\nb"\n2,c\n') == ([b'1,"a\nb"\n', b"2,c\n"], [], 12)


def test_a_doubled_quote_is_text() -> None:
    assert rows_of(b'"a""\n""b",1\n"",2\n')[:2] == ([b'"a""\n""b",1\n', b'"",2\n'], [])


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b'1,a\n2,"open,x\n3,c\n', 4),  # never closes
        (b'1,a\n2,"open,x\n3,"c",d\n', 4),  # the next quote is another field's
        (b'1,a\n2,5" wide\n3,"c"\n', 4),  # stands inside a bare field
        (b'1,a\n2,"b"\rx\n', 4),  # closes before text
        (b'"a\nb","c\n3,d\n', 3),  # opens on the second line of a row
    ],
)
def test_a_broken_quote_is_blamed_on_the_line_where_it_opens(data: bytes, line: int) -> None:
    assert line in rows_of(data)[1]


def test_lines_after_a_broken_quote_are_rows() -> None:
    assert rows_of(b'1,"open\n2,"x\ny"\n3,c\n')[0] == [b'1,"open\n', b'2,"x\ny"\n', b"3,c\n"]


def test_an_open_quote_waits_for_the_rest_of_the_file() -> None:
    assert rows_of(b'1,a\n2,"op', final=False) == ([b"1,a\n"], [], 4)
    assert rows_of(b'1,a\n2,"op\nen', final=False) == ([b"1,a\n"], [], 4)


def test_a_quote_left_open_over_a_mebibyte_is_broken() -> None:
    data = b'1,"open\n' + b"2,b\n" * (1 << 18)
    rows, broken, end = rows_of(data, final=False)
    assert (len(rows), broken, end) == (1 + (1 << 18), [0], len(data))


def test_giving_up_on_a_quote_leaves_a_later_open_one_alone() -> None:
    data = b'1,"open\n' + b"2,b\n" * (1 << 18) + b'3,"two\nli'
    _, broken, end = rows_of(data, final=False)
    assert broken == [0]
    assert data[end:] == b'3,"two\nli'


def test_quotes_that_mean_nothing_stop_the_reading() -> None:
    with pytest.raises(ValueError, match=r"more than 1000 lines have a quote .* e\.g\. '1,5\" wide'"):
        complete_rows(b'1,5" wide\n' * 1_001, COMMA, final=True)


@given(st.lists(st.lists(TEXT, min_size=1, max_size=3), min_size=1, max_size=5))
def test_output_of_a_csv_writer_is_cut_like_by_its_reader(table: list[list[str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(table)
    rows, broken, _ = rows_of(text.getvalue().encode())
    assert broken == []
    assert [next(csv.reader(io.StringIO(row.decode(), newline=""))) for row in rows] == table
