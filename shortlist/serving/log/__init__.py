"""The prediction log and the outcome log."""
