"""What a terminal shows of a stack that serves."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from shortlist.serving.rollout.record import RolloutRecord
from shortlist.serving.rollout.terminal import line
from shortlist.serving.stack.health import ProgramHealth, StackStatus


def status_table(found: StackStatus, unfinished: RolloutRecord | None, example: str) -> Group:
    """Return versions, processes, problems and how to ask.

    Args:
        found: How everything is.
        unfinished: The rollout under way, if any.
        example: A command that asks the model.
    """
    versions = Table(title=f"{found.model} at {found.url}", title_justify="left")
    for heading in ("version", "model", "track", "users", "Triton", "server", "restarts"):
        versions.add_column(heading, justify="right" if heading in ("version", "users", "restarts") else "left")
    for one in found.versions:
        health = one.health
        versions.add_row(
            str(one.version), one.kind, one.track or "nobody's", f"{one.percent} %",
            _process(health.triton), _process(health.server), str(health.restarts),
        )  # fmt: skip
    parts: list[Table | Text] = [versions]
    parts += [Text(f"✗ {problem}", "red") for problem in found.problems]
    if unfinished is not None:
        parts.append(Text(f"rollout {unfinished.id}: {line(unfinished)}"))
    parts += [Text(f"Logs: {found.logs}", "dim"), Text(f"Ask it:\n{example}", "dim")] if example else []
    return Group(*parts)


def _process(health: ProgramHealth) -> Text:
    if health.ready:
        return Text(f"ready ({health.pid})", "green")
    return Text(health.state.lower(), "yellow" if health.state == "STARTING" else "red")
