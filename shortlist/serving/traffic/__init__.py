"""Requests: a load generator, and the log played as users would."""
