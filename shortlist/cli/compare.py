"""The command that shows every model of the last run side by side: `shortlist compare`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from shortlist.cli.options import RunsOption, SetOption, SpecArgument, find_spec
from shortlist.contracts import Files, ShortlistError
from shortlist.evaluation.comparison import ComparedModel, ModelComparison
from shortlist.evaluation.metrics.records import TITLES, Metric
from shortlist.storage.artefacts import IntegrityError, read_json

commands = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_NONE = "\N{EN DASH}"


@commands.command()
def compare(
    spec: SpecArgument,
    runs: RunsOption = Path("runs"),
    change: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print compare.json itself.")] = False,
) -> None:
    """Show all models of a spec's last run: quality with paired intervals against the best, and what each costs."""
    from shortlist.spec.load import load_spec

    declared = load_spec(find_spec(spec, runs), change or ())
    path, comparison = newest_comparison(runs, declared.name)
    if as_json:
        typer.echo(path.read_text())
        return
    console = Console(highlight=False)
    if comparison.notice:
        console.print(comparison.notice, markup=False, soft_wrap=True)
    table = comparison_table(comparison)
    # Truncated numbers cannot be compared: the table keeps its width, and a narrow terminal wraps or scrolls its lines.
    console.width = max(console.width, Measurement.get(console, console.options.update(max_width=400), table).maximum)
    console.print(table)
    for name, line in comparison.models.items():
        if line.dominated_by:
            console.print(
                f"{name} is dominated by {', '.join(line.dominated_by)}: worse beyond chance, and no cheaper to train,"
                " serve or store.",
                markup=False, soft_wrap=True,
            )  # fmt: skip
    if untrained := [name for name in declared.models if name not in comparison.models]:
        console.print(f"Not in that run: {', '.join(untrained)}. Run the spec again.", markup=False, soft_wrap=True)
    console.print(f"As JSON: {path}", markup=False, soft_wrap=True)


def newest_comparison(runs: Path, spec: str) -> tuple[Path, ModelComparison]:
    """Return the file and the comparison of a spec's last finished run.

    Args:
        runs: Folder of runs.
        spec: Name of the spec.

    Raises:
        ShortlistError: No run of this spec finished here.
    """
    for path in _comparisons(runs):
        try:
            comparison = ModelComparison.model_validate(read_json(path))
        except (IntegrityError, ValueError):
            continue
        if comparison.spec == spec:
            return path, comparison
    raise ShortlistError(
        f"{runs}: no run of '{spec}' finished here. Run it first: make run SPEC={spec} RUNS={shlex.quote(str(runs))}"
    )


def _comparisons(runs: Path) -> Iterator[Path]:
    yield from [path for path in (runs / "latest" / Files.COMPARISON,) if path.is_file()]
    yield from sorted(runs.glob(f"*/{Files.COMPARISON}"), reverse=True)


def comparison_table(comparison: ModelComparison) -> Table:
    """Return the comparison as a table for a terminal."""
    title = f"{comparison.spec}: {comparison.test_rows:,} test rows, {TITLES[comparison.metric]} decides"
    table = Table(title=title, title_justify="left")
    table.add_column("model", no_wrap=True)
    metrics: list[Metric] = ["auc", "log_loss"]
    metrics += [
        name for name in ("gauc", "ndcg_at_10") if any(getattr(model, name) for model in comparison.models.values())
    ]
    for heading in (*(TITLES[name] for name in metrics), "calibration\nerror", "trained\ns", "p50\nms", "size\nMiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, line in comparison.models.items():
        label = f"{name}\n{line.kind}\n{line.role}"
        cells = [_metric(line, metric) for metric in metrics]
        costs = (_decimals(line.calibration_error, 4), _decimals(line.train_seconds, 1))
        size = None if line.size_bytes is None else line.size_bytes / 2**20
        table.add_row(label, *cells, *costs, _decimals(line.serving_p50_ms, 1), _decimals(size, 1))
    return table


def _metric(line: ComparedModel, metric: Metric) -> str:
    value = _decimals(getattr(line, metric), 4)
    gap = line.against_best.get(metric)
    return value if gap is None else f"{value}\n{gap.value:+.4f}\n[{gap.low:+.4f}, {gap.high:+.4f}]"


def _decimals(number: float | None, digits: int) -> str:
    return _NONE if number is None else f"{number:,.{digits}f}"
