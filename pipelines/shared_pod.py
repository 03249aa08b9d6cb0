"""Makes a component of several consecutive steps, which run in one pod."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_type_hints

from components.pod import StepWiring
from pipelines.graph_step import GraphStep, StepOutput


class SharedPod:
    """Consecutive steps of a graph that share a pod; inputs and outputs are those of the steps."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps: list[GraphStep] = []
        self.references: list[str] = []
        """`module:function` of each step."""
        self.is_cached = True
        """Whether all steps may be answered from an earlier run's results."""
        self._wiring: dict[str, StepWiring] = {}
        self._inputs: dict[str, Any] = {}
        self._input_parameters: dict[str, inspect.Parameter] = {}
        self._output_parameters: dict[str, inspect.Parameter] = {}
        self._returned: dict[str, Any] = {}

    def add(
        self, added: GraphStep, step: Callable[..., Any], interface: Any, inputs: Mapping[str, Any], *, is_cached: bool
    ) -> None:
        """Add a step.

        Args:
            added: The step.
            step: Function of its component.
            interface: kfp's specification of its component.
            inputs: Its inputs, by name; outputs of earlier steps of this pod among them.
            is_cached: Whether it may be answered from an earlier run's results.
        """
        self.is_cached = is_cached and (self.is_cached or not self.steps)
        self.steps.append(added)
        self.references.append(f"{step.__module__}:{step.__name__}")
        signature = inspect.signature(step)
        sources = {
            name: self._connect(added, name, value, signature.parameters[name]) for name, value in inputs.items()
        }
        added.pod_outputs = {output: self._free_name(added, output) for output in interface.outputs or {}}
        returned = _returned_types(step)
        for output, pod_output in added.pod_outputs.items():
            if output in signature.parameters and output not in (interface.inputs or {}):
                self._output_parameters[pod_output] = signature.parameters[output].replace(name=pod_output)
            else:
                self._returned[pod_output] = returned[output]
        self._wiring[added.name] = {"inputs": sources, "outputs": dict(added.pod_outputs)}

    def function(self) -> Callable[..., Any]:
        """Return a function with the interface of the pod, of which kfp makes a component."""

        def run(**inputs: Any) -> None:
            """Run the steps."""

        without_defaults = [
            parameter.replace(default=inspect.Parameter.empty) for parameter in self._outputs_and_inputs()
        ]
        returned = NamedTuple("Returned", list(self._returned.items()))  # type: ignore[misc] # known at run time
        run.__name__ = self.name
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # as PEP 362 says
            without_defaults, return_annotation=returned if self._returned else inspect.Signature.empty
        )
        return run

    def wiring(self) -> str:
        """Return how the steps are connected, for `components.pod`."""
        return json.dumps(self._wiring, separators=(",", ":"))

    def channels(self) -> dict[str, Any]:
        """Return what kfp passes to the pod, by input."""
        # kfp's item of a loop answers every attribute: the type tells what is an output of a step.
        return {name: value.channel if isinstance(value, StepOutput) else value for name, value in self._inputs.items()}

    def _outputs_and_inputs(self) -> list[inspect.Parameter]:
        return [*self._input_parameters.values(), *self._output_parameters.values()]

    def _connect(self, added: GraphStep, name: str, value: Any, parameter: inspect.Parameter) -> str:
        """Return the source of a step's input: `<step>.<output>`, or an input of the pod, which is added if missing."""
        if isinstance(value, StepOutput) and value.step in self.steps[:-1]:
            return f"{value.step.name}.{value.name}"
        for existing, source in self._inputs.items():
            if _is_same(source, value):
                return existing
        pod_input = self._free_name(added, name)
        self._inputs[pod_input] = value
        self._input_parameters[pod_input] = parameter.replace(name=pod_input)
        return pod_input

    def _free_name(self, added: GraphStep, name: str) -> str:
        """Return the pod's name of a step's input or output, which no other input or output of the pod has."""
        names = {*self._inputs, *self._output_parameters, *self._returned}
        return name if name not in names else f"{added.name}_{name}"


def _is_same(source: Any, value: Any) -> bool:
    """Whether two inputs have the same source. kfp's channels are compared by identity: `==` makes a condition."""
    is_compared = isinstance(value, (str, int, float, bool, StepOutput))
    return source is value or (is_compared and type(source) is type(value) and bool(source == value))


def _returned_types(step: Callable[..., Any]) -> dict[str, Any]:
    """Return the type of each returned output, by name."""
    annotation = inspect.signature(step).return_annotation
    if hasattr(annotation, "_fields"):
        return get_type_hints(annotation)
    return {"Output": annotation}
