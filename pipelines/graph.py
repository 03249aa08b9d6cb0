"""Builds a graph for a spec: adds its steps, with the settings of what runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from kfp import dsl

from components.image import PIPELINE_IMAGE
from components.pod import MODULE
from components.sections import store_sections
from pipelines.graph_step import GraphStep, StepOutput
from pipelines.parameters import with_parameters
from pipelines.shared_pod import SharedPod
from shortlist.report.titles import graph_title
from shortlist.spec.spec import Spec

Step = Callable[..., Any]
"""Function of a component: its parameters are annotated as Kubeflow reads them."""
PROGRAM: Final = ("python3", "-m", MODULE)


class GraphTarget:
    """What runs a graph; this one says nothing about pods, so that kfp.local and any cluster run what it gives."""

    command: Sequence[str] = PROGRAM
    """Command of every pod."""
    is_cached = True
    """Whether a step may be answered from an earlier run's results."""
    is_parallel = False
    """Whether the models of a run are trained at the same time."""
    has_references = False
    """Whether steps get references to the sections of the spec instead of their texts."""
    config: dsl.PipelineConfig | None = None
    """Settings of a run as a whole."""

    def shares_pod(self, stage: str) -> bool:
        """Return whether the steps of a stage run in one pod."""
        return False

    def configure(self, task: Any, steps: Sequence[str]) -> None:
        """Set image, resources and environment of a pod.

        Args:
            task: kfp's task.
            steps: Names of the steps that it runs.
        """


class PipelineBuilder:
    """Adds steps to the graphs of a spec.

    Args:
        spec: The declaration.
        target: What runs the graphs.
    """

    def __init__(self, spec: Spec, target: GraphTarget | None = None) -> None:
        self.spec = spec
        self.target = target or GraphTarget()
        self.steps: dict[str, tuple[str, ...]] = {}
        """Name of each task -> the steps that it runs, in the order in which they were added."""
        self._parameters: dict[str, Any] = {}
        self._shared: SharedPod | None = None

    def pipeline(self, name: str, description: str, parameters: Sequence[str]) -> Callable[[Callable[[], None]], Any]:
        """Return a decorator that makes a graph of a function that adds its steps.

        Args:
            name: Name of the pipeline in Kubeflow.
            description: What it does, for Kubeflow's UI.
            parameters: Names of its parameters, from `pipelines.parameters.PARAMETERS`.
        """

        def decorate(add_steps: Callable[[], None]) -> Any:
            def graph(**channels: Any) -> None:
                outer, self._parameters = self._parameters, channels
                add_steps()
                self._parameters = outer

            graph.__doc__ = add_steps.__doc__
            make = dsl.pipeline(name=name, description=description, pipeline_config=self.target.config)
            return make(with_parameters(*parameters)(graph))

        return decorate

    def parameter(self, name: str) -> Any:
        """Return a parameter of the graph."""
        return self._parameters[name]

    @property
    def parameters(self) -> dict[str, Any]:
        """All parameters of the graph, by name."""
        return dict(self._parameters)

    def store_sections(self) -> None:
        """Give later steps references to the sections of the spec, where the target wants that."""
        if not self.target.has_references:
            return
        outputs = store_sections.__annotations__["return"]._fields
        names = [name for name in outputs if name in self._parameters]
        stored = self.add(store_sections, cached=False, **{name: self._parameters[name] for name in names})
        self._parameters = self._parameters | {name: stored[name] for name in names}

    def add(self, step: Step, *, cached: bool = True, after: Sequence[GraphStep] = (), **inputs: Any) -> GraphStep:
        """Add a step.

        A required parameter of the step that is not given is the graph's parameter of the same name.

        Args:
            step: Function of its component.
            cached: Whether an earlier run's outputs may be reused.
            after: Steps that end before it starts, besides those whose outputs it reads.
            inputs: Parameters and artefacts, by name; None: not declared, for an optional input.
        """
        component = self._component(step, [f"{step.__module__}:{step.__name__}"])
        for name, declared in component.component_spec.inputs.items():
            if name not in inputs and not declared.optional and name in self._parameters:
                inputs[name] = self._parameters[name]
        inputs = {name: value for name, value in inputs.items() if value is not None}
        added = GraphStep(step.__name__)
        if self._shared is not None:
            self._shared.add(added, step, component.component_spec, inputs, is_cached=cached)
            return added
        channels = {name: value.channel if isinstance(value, StepOutput) else value for name, value in inputs.items()}
        self._configure([added], component(**channels), graph_title(added.name), cached=cached, after=after)
        return added

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Let the steps that are added in a block share a pod, where the target wants that.

        A stage inside one that shares a pod is part of it.
        """
        if self._shared is not None or not self.target.shares_pod(name):
            yield
            return
        pod = self._shared = SharedPod(name)
        yield
        self._shared = None
        component = self._component(pod.function(), pod.references, ["--wiring", pod.wiring()])
        title = f"{name.capitalize()}: {', '.join(graph_title(step.name) for step in pod.steps)}"
        self._configure(pod.steps, component(**pod.channels()), title, cached=pod.is_cached)

    def _component(self, step: Step, references: Sequence[str], options: Sequence[str] = ()) -> Any:
        """Return kfp's component of a function, which runs the code in the image instead of a copy in the graph."""
        component = dsl.component(step, base_image=PIPELINE_IMAGE, install_kfp_package=False)
        container = component.component_spec.implementation.container
        container.command = list(self.target.command)
        executor_input = ["--executor_input", dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER]
        container.args = [*references, *options, *executor_input]
        return component

    def _configure(
        self, steps: Sequence[GraphStep], task: Any, title: str, *, cached: bool, after: Sequence[GraphStep] = ()
    ) -> None:
        for step in steps:
            step.task = task
        task.set_display_name(title)
        if after:
            task.after(*(step.task for step in after))
        if not (cached and self.target.is_cached):
            task.set_caching_options(False)
        names = tuple(step.name for step in steps)
        self.steps[task.name] = names
        self.target.configure(task, names)
