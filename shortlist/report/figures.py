"""Figures as SVG text: small, readable, the same bytes for the same numbers, in the colours of the page around them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shortlist.storage.artefacts import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK: Final = "#1b1f24"
MUTED: Final = "#59636e"
GRID: Final = "#dfe3e8"
SERIES: Final = ("#1a5fb4", "#b4530a", "#0b7a5e", "#9a3586", "#6a6257")
"""Colours of the series: distinct for colour-blind people, and dark enough for text on white."""
DASHES: Final = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 3)))
"""Dashes of the series: one per colour, so that lines differ without colour."""
MARKERS: Final = ("o", "s", "^", "D", "v")

_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", **{colour: f"s{n}" for n, colour in enumerate(SERIES, 1)}}
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: sharp, selectable, read aloud
    "svg.hashsalt": "shortlist",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so that every machine measures text alike
    "font.size": 11,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.8,
    "text.color": INK,
    "text.parse_math": False,  # names come from specs and logs: `$` is a character, and no formula that may not parse
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
}


@dataclass(frozen=True)
class Plot:
    """A figure with its title and caption."""

    name: str
    """Name of its file."""
    title: str
    caption: str
    """Description of the figure, also for screen readers."""
    svg: str


@contextmanager
def figure_panels(width: float = 5.0, height: float = 3.6, rows: int = 1) -> Iterator[tuple[Figure, list[Axes]]]:
    """Yield a styled figure (inches) with panels below each other that share their x axis; without global state."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
        axes = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
        for panel in axes:
            panel.set_facecolor("none")
            panel.grid(axis="y")
        yield figure, list(axes)


def plot(figure: Figure, name: str, title: str, caption: str) -> Plot:
    """Return a finished figure as a plot; call it inside `figure_panels`."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    return Plot(name, title, caption, _themed(buffer.getvalue(), name))


def write_plots(plots: Iterable[Plot], folder: Path) -> list[Path]:
    """Write every plot as a standalone SVG file; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for plot in plots:
        paths.append(folder / f"{plot.name}.svg")
        write_text(paths[-1], '<?xml version="1.0" encoding="utf-8"?>\n' + plot.svg)
    return paths


def _themed(svg: str, name: str) -> str:
    """Return SVG to embed in a page: with the page's colours, unique ids and no fixed size."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    # Ids of groups such as "axes_1" are removed; only clips and markers are referenced and keep their ids.
    referred = set(re.findall(r"(?:url\(|href=\")#([\w-]+)", svg))
    svg = re.sub(r' id="([\w.-]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in referred else "", svg)
    svg = re.sub(r"(url\(|href=\")#", rf"\g<1>#{name}-", svg)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable}, {colour})")
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    return re.sub(r"\n\s*", "\n", svg).strip() + "\n"
