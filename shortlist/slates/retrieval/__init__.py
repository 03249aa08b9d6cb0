"""Retrieval: a few hundred of all items for a user, from several sources, as one list."""
