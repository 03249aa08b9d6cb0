"""Whole rollouts in memory, with seeded faults, under the real controller: what must always hold is checked."""
