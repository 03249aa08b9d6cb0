"""Counts of the tiles that are still open: what a server adds to the published statistics."""
