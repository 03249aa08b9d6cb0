"""Collects served traffic as days of the log: predictions joined with their outcomes, exactly once."""
