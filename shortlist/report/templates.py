"""What renders every page: the shared template and parts beside this file, and the page's own template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def page_environment(folder: Path, filters: Mapping[str, Callable[..., Any]]) -> Environment:
    """Return what renders the pages whose templates are in a folder; they extend `page.html.j2`.

    Args:
        folder: Of the pages' own templates.
        filters: What the templates call, by name.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # Rows of logs, names, reasons and messages come from anybody: everything is escaped unless it is our own picture.
    made = Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= filters
    return made
