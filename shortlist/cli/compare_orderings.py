"""The command that compares formulas of `ordering.value` on the validation days: `shortlist compare-orderings`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from shortlist.cli.options import RunsOption, SetOption, SpecArgument, find_spec
from shortlist.cli.tune import newest_matching_table
from shortlist.contracts import Files, ShortlistError, did_you_mean

if TYPE_CHECKING:
    from shortlist.spec.spec import Spec
    from shortlist.training.tuning.orderings import ComparedOrderings, RunFolders

commands = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@commands.command("compare-orderings")
def compare_orderings(
    spec: SpecArgument,
    values: Annotated[Path, typer.Argument(help="Text file with one formula a line; # begins a comment.")],
    model: Annotated[str | None, typer.Option(help="Model that scores; the first candidate by default.")] = None,
    data: Annotated[Path | None, typer.Option(help="The log, where filters read lists beside it.")] = None,
    runs: RunsOption = Path("runs"),
    change: SetOption = None,
) -> None:
    """Compare formulas of ordering.value by their slates on the validation days, with the artefacts of the last run."""
    from shortlist.spec.load import load_spec
    from shortlist.spec.ordering import Ordering
    from shortlist.training.tuning.orderings import compare_orderings

    loaded = load_spec(find_spec(spec), change or ())
    declared = (loaded.ordering or Ordering()).value
    formulas = (declared, *read_formulas(values))
    folders = run_folders(loaded, runs, spec, data)
    with TemporaryDirectory(prefix="shortlist-orderings-") as scratch:
        comparison = compare_orderings(
            loaded, scoring_model(loaded, model), formulas, folders, Path(scratch), typer.echo
        )
    for line in comparison_lines(comparison):
        typer.echo(line)


def read_formulas(path: Path) -> list[str]:
    """Return the formulas of a file.

    Raises:
        ShortlistError: The file cannot be read, or has no formula.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ShortlistError(f"{path}: cannot be read: {error}; wanted a text file with one formula a line") from error
    formulas = [text for line in lines if (text := line.partition("#")[0].strip())]
    if not formulas:
        raise ShortlistError(f"{path}: has no formula; wanted one a line, such as score * price")
    return formulas


def scoring_model(spec: Spec, name: str | None) -> str:
    """Return the name of the model that scores.

    Args:
        spec: The spec.
        name: Name of a model; None: the first candidate.

    Raises:
        ShortlistError: There is no such model.
    """
    if name is not None and name not in spec.models:
        raise ShortlistError(f"--model: no model is called '{name}'{did_you_mean(name, spec.models)}")
    return name or next(candidate for candidate, section in spec.models.items() if section.role == "candidate")


def run_folders(spec: Spec, runs: Path, named: str, data: Path | None) -> RunFolders:
    """Return the artefacts of the newest run with the same sections `data` and `features`.

    Args:
        spec: The spec.
        runs: Folder of runs.
        named: The spec as the user named it.
        data: Path of the user's log.

    Raises:
        ShortlistError: There is no such run, or filters read lists and `data` is not given.
    """
    from shortlist.training.tuning.orderings import RunFolders

    if data is None and spec.filters is not None and (lists := [rule.name for rule in spec.filters.rules if rule.file]):
        raise ShortlistError(f"filter '{lists[0]}' reads a list beside the log; name the log: --data path/to/log")
    table = newest_matching_table(spec, runs, named)
    # The artefacts of one run's steps are in sibling folders, as in `newest_matching_table`.
    fitted = next(path for path in table.parents[1].rglob(Files.FEATURES) if Files.PREPROCESSING not in path.parts)
    files = None if data is None else data if data.is_dir() else data.parent
    return RunFolders(_log_of(table, runs, named), fitted.parent, table, files)


def _log_of(table: Path, runs: Path, named: str) -> Path:
    """Return the newest validated log with the rows of a table; that of a cached step is in an earlier run's folder."""
    from shortlist.storage.tables import DayTable

    rows_by_day = {part.day: part.rows for part in DayTable.open(table, Files.TABLE).days}
    for path in sorted((runs / "cache").rglob(Files.LOG), key=lambda path: path.stat().st_mtime, reverse=True):
        rows = {part.day: part.rows for part in DayTable.open(path.parent, Files.LOG).days}
        if rows_by_day.items() <= rows.items():
            return path.parent
    raise ShortlistError(
        f"{runs}: no run of '{named}' left the validated log of its feature table here."
        f" Run it first: make run SPEC={named} RUNS={runs}"
    )


def comparison_lines(comparison: ComparedOrderings) -> list[str]:
    """Return the comparison for a terminal, a line per formula, the best first; formulas are last as they are long."""
    best = "" if comparison.best_possible is None else f"; the best possible nDCG@10 is {comparison.best_possible:.4f}"
    lines = [
        f"{comparison.users:,} users of {', '.join(comparison.days)}{best}",
        "nDCG@10  recall@10  nDCG@10 minus the declared   ordering.value",
    ]
    for ordering in sorted(comparison.orderings, key=lambda ordering: -ordering.ndcg_at_10):
        lead = ordering.lead
        gap = "declared" if ordering is comparison.orderings[0] else ""
        gap = gap if lead is None else f"{lead.value:+.4f} [{lead.low:+.4f}, {lead.high:+.4f}]"
        lines.append(f"{ordering.ndcg_at_10:7.4f}  {ordering.recall:9.4f}  {gap:<26}   {ordering.value}")
    return lines
