"""Adding a step to a graph."""

from __future__ import annotations

from typing import Any

from shortlist.report.titles import graph_title


def add_step(component: Any, *, cached: bool = True, **inputs: Any) -> Any:
    """Add a step under the title that Kubeflow's UI shows, the one of pages and terminals; return its task.

    Args:
        component: Of the step.
        cached: Whether an earlier run's result may answer it.
        inputs: Parameters and artefacts, by name.
    """
    task = component(**inputs).set_display_name(graph_title(component.name.replace("-", "_")))
    return task if cached else task.set_caching_options(False)
