"""Rows of the log into features, and the feature table."""
