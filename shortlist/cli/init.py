"""`shortlist init`: a first spec for the user's log."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shortlist.contracts import ShortlistError

if TYPE_CHECKING:
    from shortlist.first_spec.roles import RoleChoice

commands = typer.Typer()


@commands.command()
def init(
    data: Annotated[Path, typer.Argument(help="A log, or a folder with a log and tables about its users and items.")],
    out: Annotated[Path, typer.Option(help="Spec to write.")] = Path("mine.yaml"),
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing: take the likeliest, and print why.")] = False,
    max_left_out: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Largest share of the bytes in files that the spec leaves out.")
    ] = 0.2,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Inspect a log and write a first spec for it: types, clock, user, item, label, side tables, features."""
    from shortlist.first_spec.write import draft_spec, write_spec

    if out.exists() and not force:
        raise ShortlistError(f"{out}: exists already. .venv/bin/shortlist init {data} --out {out} --force replaces it")
    draft = draft_spec(data, _take_likeliest if yes else _ask, max_left_out)
    for table, reason in draft.left_out.items():
        typer.echo(f"  left out   {table}: {reason}")
    for column, comment in draft.comments.items():
        typer.echo(f"  column     {column}: {comment}")
    for side in draft.sides:
        typer.echo(
            f"  side table {side.name}: {side.table.path}, by {side.key}; {side.coverage:.0%} of the rows find it"
        )
    for column, reason in draft.outcomes.items():
        typer.echo(f"  outcome    {column}: {reason}")
    written = write_spec(draft, _spec_name(out))
    for rule, (value, reason) in draft.rules.items():
        typer.echo(f"  loosened   {rule}: {value}: {reason}")
    for notice in written.notices:
        typer.echo(f"  notice     {notice}")
    temporary = out.with_name(f".{out.name}.part")
    temporary.write_text(written.text, encoding="utf-8")
    temporary.replace(out)
    typer.echo(f"\nWritten: {out}")
    if written.problems:
        numbered_problems = "".join(f"\n  {place}. {problem}" for place, problem in enumerate(written.problems, 1))
        raise ShortlistError(
            f"{out}: the log does not match it yet; {len(written.problems)} problem(s){numbered_problems}\nA day that"
            " stands apart from the others loosens no rule: leave its rows out of the data until they are complete, or"
            f" change `data.rules` in {out} yourself"
        )
    typer.echo(f"Next:    make run SPEC={shlex.quote(str(out))} DATA={shlex.quote(str(data))}")


def _take_likeliest(question: str, choice: RoleChoice) -> str | None:
    role, _, _ = question.partition(":")
    alternatives = f"  (or: {', '.join(choice.alternatives[:3])})" if choice.alternatives else ""
    typer.echo(f"  {role:<10} {choice.value or 'none'}: {choice.reason}{alternatives}")
    return choice.value


def _ask(question: str, choice: RoleChoice) -> str | None:
    columns = [name for name in (choice.value, *choice.alternatives) if name is not None]
    if not columns:
        return None
    typer.echo(f"\n{question}\n  likeliest: {choice.value or 'none'} ({choice.reason})")
    if choice.alternatives:
        typer.echo(f"  others: {', '.join(choice.alternatives)}")
    while True:
        try:
            answer = str(typer.prompt("  column, or none", default=choice.value or "none")).strip()
        except typer.Abort:
            if sys.stdin.isatty():
                raise
            raise ShortlistError(
                "no terminal to answer on, so nothing is written; --yes (make init ... YES=1) takes the likeliest of"
                " each, and prints why"
            ) from None
        if answer in columns:
            return answer
        if answer == "none":
            return None
        typer.echo(f"  '{answer}' is not among {', '.join(columns)}")


def _spec_name(out: Path) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", out.stem.lower()).strip("-")
    return name if name[:1].isalpha() else f"log-{name}".strip("-")
