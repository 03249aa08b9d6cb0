"""Plays seeded histories for some minutes: `make simulate`."""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial

from shortlist.rollout.simulation.history import History
from shortlist.rollout.simulation.world import play


def main() -> int:
    """Play until the time is up or a rule is broken; print the rate, or the shrunk history as a test."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long (120)")
    parser.add_argument("--seed", type=int, default=0, help="of the first history (0)")
    chosen = parser.parse_args()
    began, spent, seed = time.monotonic(), time.process_time(), chosen.seed
    while time.monotonic() - began < chosen.seconds:
        broken = play(history := History.seeded(seed))
        if broken is not None:
            short = history.shrunk(partial(_breaks, broken.rule))
            test = short.as_test(f"seed_{seed}", str(play(short)))
            sys.stdout.write(f"seed {seed} breaks a rule: {broken}\n\n{test}")
            return 1
        seed += 1
    played = seed - chosen.seed
    minutes = (time.process_time() - spent) / 60
    sys.stdout.write(f"{played:,} histories keep every rule; {played / minutes:,.0f} a minute of one processor\n")
    return 0


def _breaks(rule: str, history: History) -> bool:
    broken = play(history)
    return broken is not None and broken.rule == rule


if __name__ == "__main__":
    sys.exit(main())
