"""Filters: which candidates may be shown to a user."""
