"""Checks of a canary and the analysis that decides."""
