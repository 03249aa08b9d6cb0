"""The syntax of expressions, what is refused, and that query and graph agree on every operation."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import polars as pl
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from shortlist.contracts import ShortlistError
from shortlist.features.declared.feature_kind import Fitted
from shortlist.features.declared.plan import plan
from shortlist.features.expressions.syntax import parse_feature
from shortlist.features.kinds.expression import ExpressionFeature
from shortlist.features.values.columns import DeclaredColumns, PlanError
from shortlist.serving.export.graph_builder import GraphBuilder, tensor_info
from shortlist.serving.export.graph_inputs import GraphInputs, describe_tensors
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from tests.unit.features.conftest import DECLARED

LONG = "others may be long"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("price +", "is no expression over the columns of a row"),
        ("(SELECT 1)", "unexpected subquery"),
        ("read_csv('/etc/passwd')", "unsupported function"),
        ("price > 2", "got true or false, wanted a number"),
        ("IF(price, 1, 0)", "got a number, wanted a condition"),
        ("1 + 1", "the same for every row"),
        ("SIN(price)", "got the operation 'Trigonometry.Sin'"),
        ("CAST(price AS INT)", "a cast to Int32"),
        ("LENGTH(LPAD(page, 2000000000, 'x'))", LONG),
        ("LENGTH(REPLACE(page, 'a', 'aa'))", LONG),
        ("IF(page || page = 'x', 1, 0)", LONG),
        ("IF(REGEXP_LIKE(page, '(a{1000}){1000}'), 1, 0)", "exceeds size limit"),
        ("IF(REGEXP_LIKE('a', page), 1, 0)", "has no value: regex error"),
        ("STDDEV(price) OVER (PARTITION BY page)", "a statistic of earlier rows is"),
        ("AVG(price * 2) OVER (PARTITION BY page)", "a statistic of earlier rows is"),
        ("AVG(price) OVER (PARTITION BY page ORDER BY price)", "no feature can compute"),
        ("IF(LENGTH(page) > LENGTH(made), page, 1) = 1", "got true or false"),
        ("ROUND(price, 400)", "ROUND to 400 decimals; wanted at most 15"),
        ("price + " * 300 + "price", "is too long"),
        ("'page'", "neither compared"),
    ],
)
def test_what_is_no_number_of_a_row_or_costs_too_much_is_refused_when_it_is_read(value: str, message: str) -> None:
    with pytest.raises(ValueError, match="expression") as refused:
        features = Features.model_validate({"columns": [{"kind": "expression", "name": "own", "value": value}]})
        features.columns[0].check(Data.model_validate(DECLARED))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("prize / 2", "'prize' is not a declared column; did you mean 'price'"),
        ("page / 2", "'page' is of type string; wanted integer or number or hex or date"),
        ("IF(page < page, 1, 0)", "'page' is of type string; wanted integer"),
        ("words / 2", "'words' is of type tags"),
        ("LENGTH(price)", "'price' is of type number; wanted string"),
        ("IF(page = price, 1, 0)", "compares a text with a number"),
        ("seconds / 2", "'seconds' is known only after the impression"),
        ("clicked / 2", "'clicked' is known only after the impression"),
        ("AVG(page) OVER (PARTITION BY user_id)", "'page' is of type string; wanted integer or number"),
        ("AVG(price) OVER (PARTITION BY made)", "'made' is of type date; wanted integer or hex or string or tags"),
    ],
)
def test_an_expression_that_does_not_fit_the_columns_is_refused(value: str, message: str) -> None:
    feature = ExpressionFeature(kind="expression", name="own", value=value)
    with pytest.raises(ValueError, match="features: expression 'own'") as refused:
        feature.check(Data.model_validate(DECLARED))
    assert message in str(refused.value)


def test_a_feature_reads_previously_declared_features() -> None:
    rate = {"kind": "target", "key": "user_id", "name": "user_rate"}
    twice = {"kind": "expression", "name": "twice", "value": "2 * features.user_rate"}
    assert Features.model_validate({"columns": [rate, twice]}).names == ("user_rate", "twice")
    with pytest.raises(ValueError, match="'user_rate' is declared after it; move it up"):
        Features.model_validate({"columns": [twice, rate]})
    with pytest.raises(ValueError, match="no feature is named 'user_rte'; did you mean 'user_rate'"):
        Features.model_validate({"columns": [rate, {**twice, "value": "features.user_rte"}]})
    itself = {**twice, "value": "features.twice + 1"}
    with pytest.raises(ValueError, match="'twice' is declared after it"):
        Features.model_validate({"columns": [itself]})
    page = {"kind": "vocabulary", "each": "page"}
    features = Features.model_validate({"columns": [page, {**twice, "value": "features.page_id * 2"}]})
    with pytest.raises(PlanError, match="'page_id' is no number, but of the form id"):
        plan(Data.model_validate(DECLARED), features)


def test_a_value_that_is_known_in_training_only_is_read_by_no_expression() -> None:
    position = {"kind": "training_only", "each": "seconds", "serve": 1}
    with pytest.raises(ValueError, match="'seconds_training' has its values in training only"):
        own = {"kind": "expression", "name": "own", "value": "features.seconds_training / 2"}
        Features.model_validate({"columns": [position, own]})


COLUMNS = ("price", "user_id", "likes_before")
DATA = Data.model_validate({**DECLARED, "columns": [*DECLARED["columns"], {"name": "likes_before", "type": "integer"}]})
VALUES = st.sampled_from([None, 0.0, 1.0, -1.0, 2.0, 0.5, -2.5, 7.0, 1e300, -1e-300])


def call(names: str, *arguments: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    values = st.tuples(*arguments).map(", ".join)
    return st.builds(lambda name, value: f"{name}({value})", st.sampled_from(names.split()), values)


@cache
def numbers(depth: int) -> st.SearchStrategy[str]:
    """Numbers that two machines compute to the same bits, so that a comparison of them has one answer."""
    if depth == 0:
        return st.one_of(st.sampled_from(COLUMNS), st.sampled_from(["0", "1", "-2", "2.5", "NULL"]))
    inner = numbers(depth - 1)
    return st.one_of(
        inner,
        st.builds(lambda a, op, b: f"({a} {op} {b})", inner, st.sampled_from(["+", "-", "*", "/", "%"]), inner),
        call("ABS SIGN FLOOR CEIL ROUND SQRT", inner),
        call("COALESCE GREATEST LEAST NULLIF", inner, inner),
        call("IF", conditions(depth - 1), inner, inner),
    )


def expressions() -> st.SearchStrategy[str]:
    """Numbers, and functions of them whose last bits differ between mathematical libraries."""
    return st.one_of(numbers(2), call("EXP LN LOG1P LOG2 LOG10", numbers(1)), call("POW", numbers(1), numbers(1)))


@cache
def conditions(depth: int) -> st.SearchStrategy[str]:
    inner = numbers(depth)
    simple = st.one_of(
        st.builds(lambda a, op, b: f"{a} {op} {b}", inner, st.sampled_from(["<", "<=", ">", ">=", "=", "<>"]), inner),
        st.builds(lambda a: f"{a} IS NULL", inner),
        st.builds(lambda a: f"{a} IS NOT NULL", inner),
        st.builds(lambda a: f"{a} IN (1, 2)", inner),
        st.builds(lambda a: f"{a} BETWEEN 0 AND 2", inner),
    )
    if depth == 0:
        return simple
    further = conditions(depth - 1)
    return st.one_of(
        simple,
        st.builds(lambda a, op, b: f"({a} {op} {b})", further, st.sampled_from(["AND", "OR"]), further),
        st.builds(lambda a: f"NOT ({a})", further),
    )


@example(values=["POW(price, 0)", "POW(1, price)"], rows=[(None, None, None), (3.0, None, None)])
@given(
    values=st.lists(expressions(), min_size=1, max_size=3),
    rows=st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=1, max_size=8),
)
def test_query_and_graph_agree_on_every_expression(values: list[str], rows: list[tuple[float | None, ...]]) -> None:
    features = []
    for number, value in enumerate(values):
        try:
            parse_feature(value)
        except ShortlistError:
            continue  # it reads no column
        features.append(ExpressionFeature(kind="expression", name=f"own_{number}", value=value))
    if not features:
        return
    declared = DeclaredColumns(DATA)
    fitted = Fitted(declared, {}, {}, {}, features=tuple(features))
    frame = pl.DataFrame(rows, schema=dict.fromkeys(COLUMNS, pl.Float64), orient="row")
    queries = [query for feature in features for query in feature.numbers(fitted, "cpu")]
    table = frame.select(query.value.alias(query.output) for query in queries)
    nodes = GraphBuilder()
    inputs = GraphInputs(nodes, declared)
    tensor = ExpressionFeature.nodes(inputs, fitted, [(feature, 0) for feature in features])
    output = nodes.add_named("Identity", nodes.transposed(tensor), "score")
    signature = inputs.signature("test", "test")
    graph = nodes.model(describe_tensors(signature), [tensor_info(output, np.float64, len(features))])
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"numbers": frame.select(signature.numbers).fill_null(np.nan).to_numpy()})
    expected = table.fill_null(np.nan).to_numpy()
    assert not np.isinf(expected).any()
    np.testing.assert_allclose(scores, expected, rtol=1e-9, err_msg=str([feature.value for feature in features]))


PAGE = (Path(__file__).parents[3] / "docs" / "features-of-your-own.md").read_text()


def test_the_expressions_of_the_page_are_valid() -> None:
    columns = [{"name": "device", "type": "string"}, {"name": "category", "type": "string"}]
    columns += [{"name": "title", "type": "string"}, {"name": "published", "type": "date"}]
    data = Data.model_validate({**DECLARED, "columns": [*DECLARED["columns"], *columns]})
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    features = Features.model_validate(yaml.safe_load(block)["features"])
    for feature in features.columns:
        feature.check(data)
    assert len(plan(data, features).outputs) == 8


def test_the_kind_of_the_page_is_the_one_that_is_tested() -> None:
    kind = Path(__file__).parents[1] / "serving" / "server" / "word_count_kind.py"
    assert kind.read_text() in PAGE
