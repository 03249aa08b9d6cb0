"""The parameters of all graphs: each is declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, NamedTuple


class Described(NamedTuple):
    """What Kubeflow's UI shows of a parameter."""

    type: type
    sentence: str
    default: Any = inspect.Parameter.empty


_AS_JSON: Final = "of the spec, as canonical JSON"
PARAMETERS: Final[dict[str, Described]] = {
    "name": Described(str, "Name of the spec."),
    "data": Described(str, f"Section `data` {_AS_JSON}."),
    "features": Described(str, f"Section `features` {_AS_JSON}."),
    "models": Described(list, "The declared models, each as a JSON text."),
    "retrieval": Described(str, f"Section `retrieval` {_AS_JSON}; empty for none."),
    "filters": Described(str, f"Section `filters` {_AS_JSON}; empty for none."),
    "ordering": Described(str, f"Section `ordering` {_AS_JSON}; empty for none."),
    "lists": Described(str, "Digest of the files with lists of items that filters read; empty for none."),
    "gates": Described(str, f"Section `gates` {_AS_JSON}, with the name of the baseline."),
    "serving": Described(str, f"Section `serving` {_AS_JSON}."),
    "monitoring": Described(str, f"Section `monitoring` {_AS_JSON}."),
    "tune": Described(str, f"Section `tune` {_AS_JSON}."),
    "runtime": Described(str, f"Section `runtime` {_AS_JSON}, without its part `cluster`."),
    "cluster": Described(
        str, "Part `cluster` of section `runtime`, as canonical JSON; no step that makes data has it."
    ),
    "slices": Described(list, "Columns by which the gates slice scores: the feature table keeps them."),
    "skew_rows": Described(int, "Rows that are compared with Feast."),
    "log": Described(
        dict,
        "The user's files: `location`, empty for a generated log, and `digest`, empty when only the run looks at them.",
    ),
    "cause": Described(
        dict,
        "Why the run was started: `trigger` (`manual`, `schedule` or `drift`), `key` and `reasons` of the decision, and"
        " `until`, the moment (ISO 8601) from which on no row is read. All may be left out: a person started it.",
        {},
    ),
    "stores": Described(str, "Where MLflow, Feast and the records of monitoring are kept."),
    "code": Described(str, "Digest of the source code: results of other code are not reused."),
    "cron": Described(str, "Expression of the schedule, five fields."),
    "first_day": Described(str, "First day of the range, ISO 8601, in the time zone of the log."),
    "last_day": Described(str, "Last day of the range."),
    "publish": Described(bool, "Whether servers are to read the result."),
}

_Graph = Callable[..., None]


def described(function: _Graph) -> _Graph:
    """Return a graph's function with a sentence for each of its parameters, which Kubeflow takes from its docstring.

    Raises:
        KeyError: A parameter is not described in `PARAMETERS`.
    """
    lines = [f"    {name}: {PARAMETERS[name].sentence}" for name in inspect.signature(function).parameters]
    function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Args:", *lines])
    return function


def taking(*names: str) -> Callable[[_Graph], _Graph]:
    """Return a decorator for a graph that hands its parameters on: `**given` becomes the named ones, described."""

    def decorate(function: _Graph) -> _Graph:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        chosen = {name: PARAMETERS[name] for name in names}

        @wraps(function)
        def graph(*given: Any) -> None:  # Kubeflow gives them by position
            function(**dict(zip(names, given, strict=True)))

        graph.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # as PEP 362 says
            [inspect.Parameter(name, kind, default=one.default, annotation=one.type) for name, one in chosen.items()]
        )
        return described(graph)

    return decorate


def names_of(function: _Graph) -> tuple[str, ...]:
    """Return the names of a graph's parameters."""
    return tuple(inspect.signature(function).parameters)
