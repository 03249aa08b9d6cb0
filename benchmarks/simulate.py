"""Plays seeded histories of rollouts for some minutes."""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial

from benchmarks.bench import RESULTS, Line, record, show
from tests.simulation.rollouts.history import History
from tests.simulation.rollouts.world import play


def main() -> int:
    """Play until the time is up or a rule is broken; print and record the rate, or print the history as a test."""
    parser = argparse.ArgumentParser(prog="make bench NAME=simulate", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long (120)")
    parser.add_argument("--seed", type=int, default=0, help="of the first history (0)")
    arguments = parser.parse_args()
    began, spent, seed, test = time.monotonic(), time.process_time(), arguments.seed, ""
    while time.monotonic() - began < arguments.seconds and not test:
        broken = play(history := History.seeded(seed))
        if broken is not None:
            short = history.shrink(partial(_breaks, broken.rule))
            test = f"seed {seed} breaks a rule: {broken}\n\n{short.as_test(f'seed_{seed}', str(play(short)))}"
        seed += 1
    lines = lines_of(seed - arguments.seed, time.process_time() - spent, is_broken=bool(test))
    show(f"Histories from seed {arguments.seed}", lines)
    record(lines, RESULTS)
    sys.stdout.write(test)
    return int(bool(test))


def lines_of(played: int, processor_seconds: float, *, is_broken: bool) -> list[Line]:
    """Return the lines of the table.

    Args:
        played: Histories, the one that breaks a rule included.
        processor_seconds: Spent on them by the process, which has one thread.
        is_broken: Whether the last one breaks a rule.
    """
    return [
        Line("simulate", "histories", played, "rollouts with seeded faults"),
        Line("simulate", "histories that break a rule", int(is_broken), f"of {played}"),
        Line("simulate", "processor time", round(processor_seconds, 1), "s"),
        Line("simulate", "rate of one processor", round(60 * played / processor_seconds), "histories per minute"),
    ]


def _breaks(rule: str, history: History) -> bool:
    broken = play(history)
    return broken is not None and broken.rule == rule


if __name__ == "__main__":
    sys.exit(main())
