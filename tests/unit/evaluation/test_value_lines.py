"""Values of a run's lists for the summary, the plot and MLflow."""

from __future__ import annotations

from typing import Any

from shortlist.evaluation.gates.slates import SlateMeasures
from shortlist.evaluation.value.evaluation import ListValue, ValueMeasures
from shortlist.evaluation.verdict import GateVerdict
from shortlist.report.plots import value_plot
from shortlist.report.value_lines import RunValue, run_value, value_numbers


def list_value(name: str, estimate: float | None, truth: float | None = None, problem: str = "") -> ListValue:
    bounds = {"low": None, "high": None} if estimate is None or problem else {"low": estimate - 1, "high": estimate + 1}
    return ListValue(
        list=name, estimate=estimate, truth=truth, problem=problem, effective_samples=90, unsupported=0.1, **bounds
    )


def measured(*lists: ListValue, problem: str = "") -> SlateMeasures:
    return SlateMeasures.model_construct(value=ValueMeasures(reward="click", lists=lists, problem=problem))


def value_of(slates: dict[str, SlateMeasures], shown: str) -> RunValue:
    verdict: Any = GateVerdict.model_construct(slate_measures=slates)
    value = run_value(verdict, (shown, slates[shown]))
    assert value is not None
    return value


TREES = measured(
    list_value("slates", 2.5, 2.6), list_value("popular", 1.9, 1.8), list_value("best_possible", None, 3.0, "planted")
)
NETWORK = measured(list_value("slates", 2.0, problem="few samples"), list_value("popular", 1.7))


def test_the_slates_of_every_candidate_stand_before_the_lists_that_they_share() -> None:
    value = value_of({"trees": TREES, "network": NETWORK}, "trees")
    assert [(line.list, line.model, line.title) for line in value.lists] == [
        ("slates", "trees", "slates of trees"),
        ("slates", "network", "slates of network"),
        ("popular", None, "popular"),
        ("best_possible", None, "best possible"),
    ]
    content = value.model_dump(mode="json")
    assert set(content) >= {"reward", "lists"} and content["reward"] == "click"
    promised = {"list", "model", "estimate", "low", "high", "effective_samples", "unsupported", "truth"}
    assert promised <= set(content["lists"][0])
    assert (content["lists"][2]["estimate"], content["lists"][2]["truth"]) == (1.9, 1.8)


def test_the_plot_names_every_list_whose_value_is_known_or_planted() -> None:
    plot = value_plot(value_of({"trees": TREES, "network": NETWORK}, "trees"))
    assert plot is not None and "Diamonds are the planted values" in plot.caption
    assert all(title in plot.svg for title in ("slates of trees", "popular", "best possible"))
    assert "slates of network" not in plot.svg
    unknown = measured(list_value("slates", 2.0, problem="few samples"))
    assert value_plot(value_of({"trees": unknown}, "trees")) is None


def test_numbers_of_a_candidate_are_its_own_and_those_of_the_shared_lists() -> None:
    value = value_of({"trees": TREES, "network": NETWORK}, "trees")
    numbers = value_numbers(value, "trees")
    assert (numbers["slates"], numbers["slates_low"], numbers["slates_truth"], numbers["popular"]) == (
        2.5,
        1.5,
        2.6,
        1.9,
    )
    assert numbers["best_possible_truth"] == 3.0 and "best_possible" not in numbers
    assert "slates_low" not in value_numbers(value, "network")
    assert value_numbers(None, "trees") == {}
