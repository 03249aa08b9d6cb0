"""Parameters of the graphs are described once; graphs that pass them on take the descriptions from there."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from pipelines.parameters import PARAMETERS, describe_parameters, parameter_names, with_parameters


def test_a_graph_gets_a_sentence_for_each_of_its_parameters() -> None:
    @describe_parameters
    def graph(name: str, stores: str) -> None:
        """Do it."""

    assert inspect.getdoc(graph) == (
        "Do it.\n\nArgs:\n    name: Name of the spec.\n"
        "    stores: Location of MLflow, Feast and the records of monitoring."
    )


def test_a_parameter_without_a_sentence_stops_the_compilation() -> None:
    def graph(nmae: str) -> None:
        """Do it."""

    with pytest.raises(KeyError, match="nmae"):
        describe_parameters(graph)


def test_what_is_handed_on_has_type_and_default_and_comes_by_name() -> None:
    received: dict[str, Any] = {}

    @with_parameters("models", "cause")
    def graph(**arguments: Any) -> None:
        """Do it."""
        received.update(arguments)

    assert parameter_names(graph) == ("models", "cause")
    models, cause = inspect.signature(graph).parameters.values()
    assert (models.annotation, models.default) == (list, inspect.Parameter.empty)
    assert (cause.annotation, cause.default) == (PARAMETERS["cause"].type, {})
    graph([1], {"key": "0"})
    assert received == {"models": [1], "cause": {"key": "0"}}
