"""The command that compares orderings by value on the validation days: `shortlist compare-orderings`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from shortlist.cli.options import RunsOption, SetOption, SpecArgument, find_spec
from shortlist.cli.tune import newest_matching_table
from shortlist.contracts import Files, ShortlistError, did_you_mean

if TYPE_CHECKING:
    from shortlist.spec.spec import Spec
    from shortlist.training.tuning.ordered_model import RunFolders
    from shortlist.training.tuning.orderings import ComparedOrdering, ComparedOrderings, DeclaredOrdering

commands = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@commands.command("compare-orderings")
def compare_orderings(
    spec: SpecArgument,
    values: Annotated[
        Path,
        typer.Argument(
            help="Text file; a line is a formula of ordering.value, or changes: ordering.diversity.weight=0.1."
        ),
    ],
    model: Annotated[str | None, typer.Option(help="Model that scores; the first candidate by default.")] = None,
    data: Annotated[Path | None, typer.Option(help="The log, where filters read lists beside it.")] = None,
    runs: RunsOption = Path("runs"),
    change: SetOption = None,
) -> None:
    """Compare orderings by what their slates would earn on the validation days, with the artefacts of the last run."""
    from shortlist.spec.load import load_spec
    from shortlist.training.tuning.orderings import compare_orderings

    path = find_spec(spec, runs)
    loaded = load_spec(path, change or ())
    orderings = declared_orderings(loaded, lambda text: load_spec(path, [*(change or ()), text]), read_lines(values))
    folders = run_folders(loaded, runs, spec, data)
    with TemporaryDirectory(prefix="shortlist-orderings-") as scratch:
        comparison = compare_orderings(
            loaded, scoring_model(loaded, model), orderings, folders, Path(scratch), typer.echo
        )
    for line in comparison_lines(comparison):
        typer.echo(line)


def declared_orderings(spec: Spec, change: Callable[[str], Spec], lines: Sequence[str]) -> list[DeclaredOrdering]:
    """Return the orderings that lines declare, after that of the spec.

    Args:
        spec: The spec.
        change: Returns the spec with changes, as for `--set`.
        lines: Each a formula of `ordering.value`, or changes that begin with `ordering.`.
    """
    from shortlist.spec.ordering import Ordering
    from shortlist.training.tuning.orderings import DeclaredOrdering

    declared = spec.ordering or Ordering()
    return [
        DeclaredOrdering(declared.value, declared),
        *(
            DeclaredOrdering(
                line,
                change(line).ordering or declared
                if line.startswith("ordering.")
                else declared.model_copy(update={"value": line}),
            )
            for line in lines
        ),
    ]


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file without comments.

    Raises:
        ShortlistError: The file cannot be read, or has no line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ShortlistError(
            f"{path}: cannot be read: {error}; wanted a text file with one formula or change of ordering a line"
        ) from error
    declared_lines = [text for line in lines if (text := line.partition("#")[0].strip())]
    if not declared_lines:
        raise ShortlistError(f"{path}: has no formula; wanted one a line, such as score * price")
    return declared_lines


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
    from shortlist.training.tuning.ordered_model import RunFolders

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
        f" Run it first: make run SPEC={named} RUNS={shlex.quote(str(runs))}"
    )


def comparison_lines(comparison: ComparedOrderings) -> list[str]:
    """Return the comparison for a terminal, a line per ordering, the best first; texts are last as they are long."""
    if comparison.problem:
        return [
            f"The value of slates is unknown: {comparison.problem}.",
            "nDCG@10 (agreement with what was shown, not quality)   ordering",
            *(f"{ordering.ndcg_at_10:7.4f}{'':47} {ordering.text}" for ordering in comparison.orderings),
        ]
    best = "" if comparison.best_possible is None else f"; the best possible earns {comparison.best_possible:.3f}"
    lines = [
        f"{comparison.users:,} users of {', '.join(comparison.days)}, reward {comparison.reward} a request{best}",
        "value   interval          minus the declared         planted  ordering",
    ]
    for ordering in sorted(comparison.orderings, key=_earned, reverse=True):
        value, lead = ordering.value, ordering.lead
        gap = "declared" if lead is None else _format_bounds(lead.value, lead.low, lead.high)
        planted = "" if ordering.truth is None else f"{ordering.truth:.3f}"
        bounds = "unknown" if value is None or value.low is None else f"[{value.low:.3f}, {value.high:.3f}]"
        lines.append(f"{_earned(ordering):5.3f}   {bounds:<16}  {gap:<25}  {planted:>7}  {ordering.text}")
    problems = {ordering.value.problem for ordering in comparison.orderings if ordering.value}
    return [*lines, *(f"Unknown: {problem}." for problem in sorted(problems) if problem)]


def _earned(ordering: ComparedOrdering) -> float:
    return (ordering.value.estimate or 0.0) if ordering.value else 0.0


def _format_bounds(value: float | None, low: float | None, high: float | None) -> str:
    return "unknown" if value is None or low is None or high is None else f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"
