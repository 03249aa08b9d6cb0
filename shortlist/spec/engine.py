"""A step's runtime section with its engine checked and set up, before the step reads a row."""

from __future__ import annotations

from shortlist.spec.runtime import Runtime
from shortlist.system.query_engine import prepare


def prepared(runtime: str) -> Runtime:
    """Return the runtime section in JSON; from here on this process's queries run as it says.

    Raises:
        EngineError: The declared engine is not there, too old or too small.
    """
    section = Runtime.model_validate_json(runtime)
    prepare(section.engine, section.gpu)
    return section
