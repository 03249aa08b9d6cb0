"""Terminal output of the status of a serving stack."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group
from rich.table import Table
from rich.text import Text

from shortlist.rollout.local.health import ProgramHealth, StackStatus
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.terminal import status_line


def status_table(stack_status: StackStatus, unfinished: RolloutRecord | None, example: str) -> Group:
    """Return versions, processes, problems and an example request.

    Args:
        stack_status: Status of the stack.
        unfinished: The current rollout, if any.
        example: A command that sends a request to the model.
    """
    versions = Table(
        title=f"{stack_status.model} at {stack_status.url}", title_justify="left", box=None, padding=(0, 2, 0, 0)
    )
    for heading in ("version", "model", "track", "users", "Triton", "server", "restarts"):
        versions.add_column(heading, justify="right" if heading in ("version", "users", "restarts") else "left")
    for version in stack_status.versions:
        health = version.health
        versions.add_row(
            str(version.version), version.kind, version.track or "none", f"{version.percent} %",
            _processes(replica.triton for replica in health.replicas),
            _processes(replica.server for replica in health.replicas),
            str(health.restarts),
        )  # fmt: skip
    parts: list[Table | Text] = [versions]
    parts += [Text(f"✗ {problem}", "red") for problem in stack_status.problems]
    if unfinished is not None:
        parts.append(Text(f"rollout {unfinished.id}: {status_line(unfinished)}"))
    parts += [Text(f"Logs: {stack_status.logs}", "dim"), Text(f"Ask it:\n{example}", "dim")] if example else []
    return Group(*parts)


def _processes(processes: Iterable[ProgramHealth]) -> Text:
    return Text(", ").join(map(_process, processes))


def _process(health: ProgramHealth) -> Text:
    if health.ready:
        return Text(f"ready ({health.pid})", "green")
    return Text(health.state.lower(), "yellow" if health.state == "STARTING" else "red")
