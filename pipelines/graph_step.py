"""A step of a graph, and its outputs as inputs of other steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kfp import dsl


@dataclass(eq=False)
class GraphStep:
    """A step of a graph; its outputs, by name, are inputs of other steps."""

    name: str
    task: Any = None
    """kfp's task; None until all steps of a shared pod are added."""
    pod_outputs: dict[str, str] | None = None
    """Output of the step -> output of the pod that it shares; None: it has a pod of its own."""

    def __getitem__(self, output: str) -> StepOutput:
        return StepOutput(self, output)


@dataclass(frozen=True)
class StepOutput:
    """An output of a step."""

    step: GraphStep
    name: str

    @property
    def channel(self) -> Any:
        """What kfp passes to other tasks and compares in conditions."""
        return self.step.task.outputs[(self.step.pod_outputs or {}).get(self.name, self.name)]

    @property
    def collected(self) -> CollectedOutput:
        """The outputs of all iterations of the loop that the step is in."""
        return CollectedOutput(self.step, self.name)


@dataclass(frozen=True)
class CollectedOutput(StepOutput):
    """An output of a step in a loop, of all iterations."""

    @property
    def channel(self) -> Any:
        """What kfp passes to another task; Kubeflow modifies it, so that every reader gets one of its own."""
        return dsl.Collected(super().channel)
