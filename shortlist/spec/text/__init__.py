"""Texts in a spec: durations, quantities, formats of times, YAML and changes to it."""
