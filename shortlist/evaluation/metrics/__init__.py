"""Metrics of scores and lists, with intervals."""
