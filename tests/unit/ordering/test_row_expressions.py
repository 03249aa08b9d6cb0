import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shortlist.system.row_expressions import ExpressionError, ExpressionKind, parse_expression

TYPES = {
    "price": pl.Float64(),
    "stock": pl.Int64(),
    "region": pl.String(),
    "tags": pl.List(pl.Int64()),
    "until": pl.Date(),
    "now": pl.Datetime("us", "UTC"),
}


@pytest.mark.parametrize(
    ("text", "expression_kind", "message"),
    [
        ("prize > 3", "condition", "reads 'prize', which is no column of candidates; did you mean 'price'"),
        ("stock > 'many'", "condition", "cannot compare string with numeric"),
        ("price + ", "number", "Expected: an expression"),
        ("price", "condition", "gives Float64; wanted true or false"),
        ("stock > 0", "number", "gives Boolean; wanted a number"),
        ("SUM(price)", "number", "one value for all candidates"),
        ("1 = 1", "condition", "one value for all candidates"),
        ("unnest(tags) > 1", "condition", "one value for all candidates"),
        ("price IN (SELECT 1)", "condition", "is no expression"),
        ("read_csv('/etc/passwd')", "number", "unsupported function"),
        ("*", "number", "is no expression"),
        ("(" * 51 + "price" + ")" * 51, "number", "51 opening brackets"),
        (
            "LPAD(region, 2000000000, 'x') = 'x'",
            "condition",
            "uses LPAD, whose texts may take all of a server's memory",
        ),
        ("REPLACE(region, 'a', 'aa') = 'x'", "condition", "uses REPLACE"),
        (
            "TRY_CAST(region AS BIGINT) + CAST(region AS BIGINT)",
            "number",
            "fails for some values of its columns: conversion from `str` to `i64` failed",
        ),
        ("CAST(price AS BIGINT)", "number", "TRY_CAST gives null for a value that has no such type"),
        ("POW(2, stock)", "number", "POW(2.0, x) takes any number"),
        ("REGEXP_LIKE('a', region)", "condition", "regex error"),
        ("price + " * 300 + "price", "number", "is too long: got 2,405 characters"),
    ],
)
def test_an_expression_that_does_not_fit_is_refused_with_the_reason(
    text: str, expression_kind: ExpressionKind, message: str
) -> None:
    with pytest.raises(ExpressionError) as refused:
        parse_expression(text, TYPES, expression_kind)
    assert message in str(refused.value)


def test_null_in_conditions_follows_sql() -> None:
    rows = pl.DataFrame({"stock": [1, None, 0], "region": ["DE", "DE", None]})
    condition = parse_expression("stock > 0 AND region = 'DE'", TYPES, "condition")
    assert condition.evaluate(rows).to_list() == [True, None, False]
    assert condition.columns == ("stock", "region")


def test_dates_are_compared_with_the_moment_of_the_request() -> None:
    rows = pl.DataFrame({"until": ["2026-01-31", "2026-02-02"], "now": ["2026-02-01", "2026-02-01"]}).with_columns(
        pl.col("until").str.to_date(), pl.col("now").str.to_datetime("%Y-%m-%d", time_zone="UTC", time_unit="us")
    )
    assert parse_expression("until >= CAST(now AS DATE)", TYPES, "condition").evaluate(rows).to_list() == [
        False,
        True,
    ]


def test_what_is_null_for_values_of_no_such_type_takes_them_all() -> None:
    rows = pl.DataFrame({"region": ["12", "x", None], "stock": [3, -1, None]})
    for text, values in {
        "TRY_CAST(region AS BIGINT)": [12, None, None],
        "POW(2.0, stock)": [8.0, 0.5, None],
    }.items():
        assert parse_expression(text, TYPES, "number").evaluate(rows).to_list() == values


@given(st.text(alphabet="()+-*/<>=!'\"., ;\\\0\n%_axprice1stock\u00e9\U0001f600NULANDORCSEWHT", max_size=40))
def test_invalid_expressions_are_refused_with_a_message(text: str) -> None:
    try:
        parsed = parse_expression(text, TYPES, "condition")
    except ExpressionError as refused:
        assert "\n" not in str(refused).replace(repr(text), "").replace(text, "")
    else:
        assert parsed.columns
