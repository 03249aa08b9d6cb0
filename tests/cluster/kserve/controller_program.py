"""Controllers that die: a JSON line on stdin for each, its fate on stdout.

Each controller is a process of its own, forked from this one, which has imported everything already.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from kserve_world import CLUSTER, Script, World  # noqa: E402

from shortlist.rollout.record import RolloutRecord  # noqa: E402


def dying(phase: str, times: int) -> Callable[[RolloutRecord], None]:
    """Return what kills this process as soon as a phase has been written down so many times."""
    remaining = [times]

    def on_change(record: RolloutRecord) -> None:
        if record.state.phase.value == phase:
            remaining[0] -= 1
            if remaining[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return on_change


def run(order: dict[str, Any]) -> str:
    changes = order.get("changes", {})
    if "namespace" in changes:
        changes["cluster"] = CLUSTER.model_copy(update={"namespace": changes.pop("namespace")})
    world = World(Path(order["folder"]), order["url"], **changes)
    world.observe = lambda _: Script(order.get("bad_step"))
    if order.get("phase"):
        world.on_change = dying(order["phase"], order.get("times", 1))
    if order.get("request"):  # dies in the middle of a call: it was sent, the answer is never read
        die_at_request(order["request"])
    rolling = world.roll_out()
    return rolling.canary().state.phase.value


def die_at_request(number: int) -> None:
    from urllib3.connection import HTTPConnection

    real, remaining = HTTPConnection.getresponse, [number]

    def counted(self: HTTPConnection) -> Any:
        response = real(self)
        remaining[0] -= 1
        if remaining[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return response

    HTTPConnection.getresponse = counted  # type: ignore[method-assign]


def main() -> None:
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                outcome = run(json.loads(line))
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"
            os.write(writing, outcome.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            outcome = pipe.read()
        _, status = os.waitpid(child, 0)
        fate = f"killed by {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else outcome
        sys.stdout.write(json.dumps(fate) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
