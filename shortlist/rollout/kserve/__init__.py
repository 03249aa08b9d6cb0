"""Versions on KServe behind a Gateway: the same rollout, another fleet."""
