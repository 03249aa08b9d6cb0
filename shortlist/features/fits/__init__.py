"""Fits: counting days, views from the counts, earlier fits, and publishing for servers."""
