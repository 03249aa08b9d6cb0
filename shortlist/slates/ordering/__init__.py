"""Ordering of scored candidates: value, rules, diversity, exploration."""
