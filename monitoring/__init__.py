"""Watching live traffic: windows, drift, quality, and the decision to train again."""
