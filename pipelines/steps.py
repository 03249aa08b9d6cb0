"""Adds a step to a graph."""

from __future__ import annotations

from typing import Any

from shortlist.report.titles import graph_title


def add_step(component: Any, *, cached: bool = True, **inputs: Any) -> Any:
    """Add a step with its title for Kubeflow's UI, which is that of pages and terminals; return its task.

    Args:
        component: Component of the step.
        cached: Whether an earlier run's outputs may be reused.
        inputs: Parameters and artefacts, by name.
    """
    task = component(**inputs).set_display_name(graph_title(component.name.replace("-", "_")))
    return task if cached else task.set_caching_options(False)
