"""Parameters of all graphs, each declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, NamedTuple


class GraphParameter(NamedTuple):
    """A parameter of a graph, with the sentence that Kubeflow's UI shows."""

    type: type
    sentence: str
    default: Any = inspect.Parameter.empty


_AS_JSON: Final = "of the spec, as canonical JSON"
PARAMETERS: Final[dict[str, GraphParameter]] = {
    "name": GraphParameter(str, "Name of the spec."),
    "data": GraphParameter(str, f"Section `data` {_AS_JSON}."),
    "features": GraphParameter(str, f"Section `features` {_AS_JSON}."),
    "models": GraphParameter(list, "The declared models, each as a JSON text."),
    "retrieval": GraphParameter(str, f"Section `retrieval` {_AS_JSON}; empty for none."),
    "filters": GraphParameter(str, f"Section `filters` {_AS_JSON}; empty for none."),
    "ordering": GraphParameter(str, f"Section `ordering` {_AS_JSON}; empty for none."),
    "lists": GraphParameter(str, "Digest of the files with lists of items that filters read; empty for none."),
    "gates": GraphParameter(str, f"Section `gates` {_AS_JSON}, with the name of the baseline."),
    "export_limits": GraphParameter(
        str, "Part of section `gates` that the validation of an exported model reads, as canonical JSON."
    ),
    "serving": GraphParameter(str, f"Section `serving` {_AS_JSON}."),
    "monitoring": GraphParameter(str, f"Section `monitoring` {_AS_JSON}."),
    "tune": GraphParameter(str, f"Section `tune` {_AS_JSON}."),
    "runtime": GraphParameter(str, f"Section `runtime` {_AS_JSON}, without its part `cluster`."),
    "cluster": GraphParameter(
        str, "Part `cluster` of section `runtime`, as canonical JSON; no step that makes data has it."
    ),
    "slices": GraphParameter(list, "Columns that the gates read beside the scores: the feature table keeps them."),
    "skew_rows": GraphParameter(int, "Rows that are compared with Feast."),
    "log": GraphParameter(
        dict,
        "The user's files: `location`, empty for a generated log, and `digest`, empty when only the run reads them.",
    ),
    "cause": GraphParameter(
        dict,
        "Why the run was started: `trigger` (`manual`, `schedule` or `drift`), `key` and `reasons` of the decision, and"
        " `until`, the time (ISO 8601) at and after which no row is read. By default a person started the run.",
        {},
    ),
    "stores": GraphParameter(str, "Location of MLflow, Feast and the records of monitoring."),
    "code": GraphParameter(str, "Digest of the source code: results of other code are not reused."),
    "gate_code": GraphParameter(str, "Digest of the gates in files of the project and in installed packages."),
    "cron": GraphParameter(str, "Expression of the schedule, five fields."),
    "first_day": GraphParameter(str, "First day of the range, ISO 8601, in the time zone of the log."),
    "last_day": GraphParameter(str, "Last day of the range."),
    "with_rollout": GraphParameter(
        bool,
        "Whether the blessed version is rolled out where the spec is served; else it is only trained and judged.",
        True,
    ),
    "publish": GraphParameter(bool, "Whether the result is published to the servers."),
}

_Graph = Callable[..., None]


def describe_parameters(function: _Graph) -> _Graph:
    """Return a graph's function with a sentence for each of its parameters, which Kubeflow takes from its docstring.

    Raises:
        KeyError: A parameter is not described in `PARAMETERS`.
    """
    lines = [f"    {name}: {PARAMETERS[name].sentence}" for name in inspect.signature(function).parameters]
    function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Args:", *lines])
    return function


def with_parameters(*names: str) -> Callable[[_Graph], _Graph]:
    """Return a decorator that gives a graph's function with `**arguments` the named parameters, with descriptions."""

    def decorate(function: _Graph) -> _Graph:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = {name: PARAMETERS[name] for name in names}

        @wraps(function)
        def graph(*arguments: Any) -> None:  # Kubeflow passes them by position
            function(**dict(zip(names, arguments, strict=True)))

        graph.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # as PEP 362 says
            [
                inspect.Parameter(name, kind, default=parameter.default, annotation=parameter.type)
                for name, parameter in parameters.items()
            ]
        )
        return describe_parameters(graph)

    return decorate


def parameter_names(function: _Graph) -> tuple[str, ...]:
    """Return the names of a graph's parameters."""
    return tuple(inspect.signature(function).parameters)
