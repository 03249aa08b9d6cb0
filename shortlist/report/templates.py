"""The Jinja environment of every page: shared templates beside this file, and the page's own template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def page_environment(folder: Path, filters: Mapping[str, Callable[..., Any]]) -> Environment:
    """Return the environment of pages whose templates are in a folder; they extend `page.html.j2`.

    Args:
        folder: Folder of the pages' own templates.
        filters: Jinja filters of the templates, by name.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # Rows of logs, names, reasons and messages are untrusted: everything is escaped except our own plots.
    environment = Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment
