"""What a terminal shows of a stack that serves."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group
from rich.table import Table
from rich.text import Text

from shortlist.rollout.local.health import ProgramHealth, StackStatus
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.terminal import line


def status_table(found: StackStatus, unfinished: RolloutRecord | None, example: str) -> Group:
    """Return versions, processes, problems and how to ask.

    Args:
        found: How everything is.
        unfinished: The rollout under way, if any.
        example: A command that asks the model.
    """
    versions = Table(title=f"{found.model} at {found.url}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("version", "model", "track", "users", "Triton", "server", "restarts"):
        versions.add_column(heading, justify="right" if heading in ("version", "users", "restarts") else "left")
    for one in found.versions:
        health = one.health
        versions.add_row(
            str(one.version), one.kind, one.track or "nobody's", f"{one.percent} %",
            _processes(one.triton for one in health.replicas), _processes(one.server for one in health.replicas),
            str(health.restarts),
        )  # fmt: skip
    parts: list[Table | Text] = [versions]
    parts += [Text(f"✗ {problem}", "red") for problem in found.problems]
    if unfinished is not None:
        parts.append(Text(f"rollout {unfinished.id}: {line(unfinished)}"))
    parts += [Text(f"Logs: {found.logs}", "dim"), Text(f"Ask it:\n{example}", "dim")] if example else []
    return Group(*parts)


def _processes(found: Iterable[ProgramHealth]) -> Text:
    return Text(", ").join(map(_process, found))


def _process(health: ProgramHealth) -> Text:
    if health.ready:
        return Text(f"ready ({health.pid})", "green")
    return Text(health.state.lower(), "yellow" if health.state == "STARTING" else "red")
