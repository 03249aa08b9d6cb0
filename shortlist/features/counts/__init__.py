"""Counts of days by key: what is kept of a key, from when it is known, and the ids of frequent values."""
