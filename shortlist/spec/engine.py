"""Load a step's runtime section and set up its query engine, before the step reads a row."""

from __future__ import annotations

from shortlist.spec.runtime import Runtime
from shortlist.system.query_engine import prepare_engine


def load_runtime(runtime: str) -> Runtime:
    """Return the runtime section parsed from JSON, after setting up its engine for this process's queries.

    Raises:
        EngineError: The declared engine is missing, too old or too small.
    """
    section = Runtime.model_validate_json(runtime)
    prepare_engine(section.engine, section.gpu)
    return section
